"""The files of a report: self-contained HTML, a PDF, tables that a spreadsheet opens safely, JSON."""

from __future__ import annotations

import csv
import io
import json
import re
import zipfile
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from controlplane.reports import rendering
from controlplane.reports.models import ReportRun
from controlplane.reports.rendering import NotRendered, as_html, content_security_policy, render
from controlplane.reports.svg import BLUE, Band, Line, lines, stacked_bars
from tests.reports.conftest import made, schedule

pytestmark = pytest.mark.django_db
DAYS = 3


class _Refers(HTMLParser):
    """Collects whatever would be fetched or run."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "link", "iframe", "img", "object", "embed", "form", "a"):
            self.found.append(tag)
        self.found += [name for name, _ in attrs if name in ("src", "href", "style", "action") or name.startswith("on")]


def test_html_refers_to_nothing_and_runs_nothing(fleet_run: ReportRun) -> None:
    text = bytes(fleet_run.files.get(format="html").content).decode()
    parser = _Refers()
    parser.feed(text)
    assert parser.found == []
    assert text.count("<svg") == 3 and "not enough history" in text
    assert "url(" not in text and "@import" not in text


def test_the_policy_allows_its_own_style_sheet_and_nothing_else(fleet_run: ReportRun) -> None:
    policy = content_security_policy()
    assert "default-src 'none'" in policy and "unsafe" not in policy and policy.count("sha256-") == 1
    style = re.search(r"<style>(.*?)</style>", as_html(fleet_run.figures), re.S)
    assert style and style[1] == rendering.style()


@pytest.mark.pango
def test_pdf_is_a_document_of_some_pages(fleet_run: ReportRun) -> None:
    content = bytes(fleet_run.files.get(format="pdf").content)
    assert content.startswith(b"%PDF-1.") and content.rstrip().endswith(b"%%EOF") and len(content) > 20_000


def test_pdf_fetches_nothing(fleet_run: ReportRun) -> None:
    with pytest.raises(ValueError, match="fetch nothing"):
        rendering._no_fetching("http://127.0.0.1/secret")


def test_without_pango_pdf_is_refused_with_words_and_the_rest_is_made(monkeypatch, db) -> None:
    monkeypatch.setattr(rendering, "pdf_missing", lambda: "PDF needs the Pango library.")
    with pytest.raises(NotRendered, match="Pango"):
        render("pdf", {})
    run = made(schedule())
    files = {file.format: file for file in run.files.all()}
    assert files["pdf"].content is None and "Pango" in files["pdf"].error
    assert all(files[name].bytes for name in ("html", "csv", "json"))


def test_csv_tables_hold_the_figures(fleet_run: ReportRun) -> None:
    archive = zipfile.ZipFile(io.BytesIO(bytes(fleet_run.files.get(format="csv").content)))
    assert {"summary.csv", "days.csv", "workers.csv", "changes.csv", "what_if.csv"} <= set(archive.namelist())
    days = list(csv.DictReader(io.TextIOWrapper(archive.open("days.csv"))))
    told = [(row["day"], row["hit_tokens"]) for row in fleet_run.figures["days"]]
    assert [(row["day"], row["hit_tokens"]) for row in days] == [(d, "" if n is None else str(n)) for d, n in told]
    assert any(row["hit_tokens"] for row in days)


@pytest.mark.parametrize("cell", ["=1+1", "@x", " =1", "-2+3", "\t=1"])
def test_cells_that_a_spreadsheet_would_run_are_disarmed(cell: str) -> None:
    assert rendering._cell(cell) == f"'{cell}"


def test_json_is_what_was_frozen(fleet_run: ReportRun) -> None:
    assert json.loads(bytes(fleet_run.files.get(format="json").content)) == fleet_run.figures


def test_text_of_people_is_escaped_everywhere(db) -> None:
    run = made(schedule(name='<img src=x onerror="alert(1)">', formats=["html"]))
    assert "<img" not in bytes(run.files.get(format="html").content).decode()


def test_a_gap_in_the_figures_is_a_gap_in_the_line() -> None:
    text = lines("t", list("abcdef"), [Line("x", BLUE, [1, 2, None, 3, 4, None])], unit="")
    assert text.count("<polyline") == 2
    assert lines("t", ["a"], [Line("x", BLUE, [None])], unit="") == ""
    assert stacked_bars("t", ["a"], [Line("x", BLUE, [None])], unit="") == ""


def test_names_in_a_chart_are_escaped_and_keep_apart() -> None:
    values = [0.5, 0.5]
    text = lines(
        "t<", ["a", "b"], [Line("<x>", BLUE, values), Line("y", BLUE, values)], unit="share", limit=("limit", 0.5),
        band=Band(values, values),
    )  # fmt: skip
    assert "<x>" not in text and "&lt;x&gt;" in text
    heights = [float(y) for y in re.findall(r'<text x="\d+" y="([\d.]+)" font-size="10.5"', text)]
    assert len(heights) == 3 and all(b - a >= 12 for a, b in pairwise(heights))

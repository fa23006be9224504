"""The report as Markdown: rows that stay rows, verdicts in words, what changed, what is missing."""

from __future__ import annotations

from benchmarks.markdown import markdown
from benchmarks.report import Bar, Report

ABOUT = {"commit": "abc", "python": "CPython 3.13.0", "router_code": "compiled", "machine": {"cpu": "X", "cores": 2}}


def rows(page: str) -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]


def filled() -> Report:
    report = Report(rounds=3)
    report.add("cost", "µs", 12.0, peers={"nginx": 6.0}, bars=[Bar(1.0, "nginx")])
    report.add("pages", "ms", 90.0, bars=[Bar(300)], why="/a|b\nsecond line")
    report.skipped["envoy"] = "no wheel"
    return report


def test_each_measure_is_one_row_with_its_verdict_in_words() -> None:
    header, _, cost, pages = rows(markdown(filled(), ABOUT, {}))
    assert header == ["measure", "ours", "bar", "met", "others (ours ÷ theirs)"]
    assert cost == ["cost", "12 µs", "≤ 1 × nginx", "**no**", "nginx 6 (2.00)"]
    assert pages[:4] == ["pages", "90 ms", "≤ 300", "yes"]


def test_the_last_reports_figure_stands_beside_it_where_there_was_one() -> None:
    header, _, cost, pages = rows(markdown(filled(), ABOUT, {"cost": 20.0}))
    assert (header[2], cost[2], pages[2].strip()) == ("before", "20", "")


def test_where_it_ran_what_is_missing_and_the_sum_are_told() -> None:
    page = markdown(filled(), ABOUT, {})
    assert page.startswith("abc, CPython 3.13.0, compiled; cpu X, cores 2; median of 3 rounds.\n")
    assert "1 met, 1 missed, 0 open." in page
    assert "- pages: /a\\|b second line" in page
    assert "- not measured, envoy: no wheel" in page

"""Figures into files: HTML that needs nothing else, PDF made from it, CSV tables in a zip, JSON."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NoReturn
from zoneinfo import ZoneInfo

from django.conf import settings
from django.template.loader import render_to_string

from controlplane.reports.charts import charts, forecast_chart
from controlplane.reports.models import Format

Figures = Mapping[str, Any]
PANGO_PACKAGES = "libpango-1.0-0 libpangoft2-1.0-0 libharfbuzz-subset0"
TABLES = (
    "days", "pools", "workers", "tenants", "prefixes", "breakers", "forecasts", "anomalies", "recommendations",
    "changes", "what_if",
)  # fmt: skip
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")
_ZIP_TIME = (2000, 1, 1, 0, 0, 0)
"""Of every entry: equal figures, equal bytes."""


class NotRendered(Exception):
    """The format cannot be made on this machine; the message says what is missing."""


def render(format: str, figures: Figures) -> bytes:
    """Raises NotRendered."""
    if format == Format.HTML:
        return as_html(figures).encode()
    if format == Format.PDF:
        return as_pdf(figures)
    if format == Format.CSV:
        return as_csv_zip(figures)
    return json.dumps(figures, indent=1, ensure_ascii=False).encode()


def context_of(figures: Figures) -> dict[str, Any]:
    """What the templates of a report need beside the figures."""
    return {
        "figures": figures,
        "summary": figures["summary"],
        "before": figures["before"],
        "zone": ZoneInfo(figures["time_zone"]),
        "charts": charts(figures),
        "forecasts": [(row, forecast_chart(row)) for row in figures["forecasts"]],
    }


def as_html(figures: Figures) -> str:
    return render_to_string("reports/report.html", context_of(figures) | {"style": style()})


def content_security_policy() -> str:
    """For a report shown by the web server: its own style sheet, by digest, and nothing else at all."""
    digest = base64.b64encode(hashlib.sha256(style().encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; sandbox allow-popups"
    )


@cache
def style() -> str:
    return (settings.BASE_DIR / "static/css/report.css").read_text()


def as_pdf(figures: Figures) -> bytes:
    """Raises NotRendered without Pango."""
    if reason := pdf_missing():
        raise NotRendered(reason)
    from weasyprint import HTML  # its import loads Pango, which may be missing

    found: bytes = HTML(string=as_html(figures), url_fetcher=_no_fetching).write_pdf()
    return found


@cache
def pdf_missing() -> str:
    """Why PDF cannot be made here; "" where it can."""
    try:
        import weasyprint  # noqa: F401  its import loads Pango, which may be missing
    except (ImportError, OSError):
        return f"PDF needs the Pango library. On Debian and Ubuntu: apt-get install {PANGO_PACKAGES}"
    return ""


def as_csv_zip(figures: Figures) -> bytes:
    """One file a table, cells that a spreadsheet would run disarmed."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        _write(archive, "summary", [{"period": name, **figures[key]} for name, key in _PERIODS])
        for name in TABLES:
            _write(archive, name, _rows(figures, name))
    return out.getvalue()


_PERIODS = (("report", "summary"), ("before", "before"))


def _rows(figures: Figures, name: str) -> list[Figures]:
    if name == "changes":
        return list(figures["changes"]["rows"])
    if name == "what_if":
        asked = figures["what_if"]
        return [_flat_scenario(row) for row in asked["scenarios"]] if asked["available"] else []
    if name == "forecasts":
        return [{key: value for key, value in row.items() if key not in ("points", "line")} for row in figures[name]]
    return list(figures[name])


def _flat_scenario(row: Figures) -> dict[str, Any]:
    flat: dict[str, Any] = {"name": row["name"], "workers": row["workers"]}
    for name, spread in row.items():
        if isinstance(spread, dict):
            flat |= {f"{name}_{part}": value for part, value in spread.items()}
    return flat


def _write(archive: zipfile.ZipFile, name: str, rows: Sequence[Figures]) -> None:
    out = io.StringIO()
    columns = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.writer(out)
    writer.writerow(columns)
    writer.writerows([[_cell(row.get(column)) for column in columns] for row in rows])
    entry = zipfile.ZipInfo(f"{name}.csv", _ZIP_TIME)
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, out.getvalue())


def _cell(value: Any) -> object:
    """Empty for unknown; lists and objects as JSON."""
    if isinstance(value, list | dict):
        value = json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) and value.lstrip(" ").startswith(_FORMULA_STARTS):
        return f"'{value}"
    return "" if value is None else value


def _no_fetching(url: str, *args: Any, **kwargs: Any) -> NoReturn:
    """A report refers to nothing: not to the network, not to a file."""
    raise ValueError("reports fetch nothing")

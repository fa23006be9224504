"""A report as a message: text, and HTML in the form that mail programs understand (tables, styles on the elements)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.template.loader import render_to_string
from django.urls import reverse

from controlplane.reports.models import ReportRun
from controlplane.webhooks.delivering import external_url

Figures = Mapping[str, Any]


def subject(figures: Figures) -> str:
    """One line."""
    words = " ".join(str(figures.get("name", "Capacity review")).split())
    return f"[Tidemark] {words}, {_day(figures, 'from')} – {_day(figures, 'to')}"


def sentence(figures: Figures, *, url: str) -> str:
    """The headline figures in a line or two, for chat messages."""
    return " ".join(render_to_string("reports/sentence.txt", {"figures": figures, "url": url}).split())


def as_text(run: ReportRun) -> str:
    return render_to_string("reports/mail.txt", _context(run))


def as_html(run: ReportRun) -> str:
    return render_to_string("reports/mail.html", _context(run))


def url_of(run: ReportRun) -> str:
    """Of its page; "" where this installation has no name beyond this machine."""
    origin = external_url()
    return f"{origin}{reverse('report-run', args=[run.pk])}" if origin else ""


def file_name(run: ReportRun, format: str) -> str:
    """`weekly-2026-11-30.pdf`, by the day it ends."""
    ending = "zip" if format == "csv" else format
    day = run.to_at.astimezone(ZoneInfo(run.settings["time_zone"])).date()
    return f"{run.settings['slug']}-{day.isoformat()}.{ending}"


def _context(run: ReportRun) -> dict[str, Any]:
    figures = run.figures or {}
    return {
        "figures": figures, "summary": figures["summary"], "before": figures["before"], "url": url_of(run),
        "first": _day(figures, "from"), "last": _day(figures, "to"),
    }  # fmt: skip


def _day(figures: Figures, edge: str) -> str:
    return datetime.fromisoformat(figures[edge]).astimezone(ZoneInfo(figures["time_zone"])).date().isoformat()

"""What stands on the time axis beside figures: changes from the audit log, and the notes that people wrote."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from html import escape
from zoneinfo import ZoneInfo

from django.db.models import F, Value

from controlplane.audit.models import AuditEntry
from controlplane.namespaces.change_log import about
from controlplane.telemetry.figures import Series
from controlplane.telemetry.windows import Scope
from controlplane.workspace.notes import notes_within
from dashboard.charts.base import GREY, Figure
from dashboard.data import PageData
from dashboard.words import person

MARKS_MAX = 60
"""Newest first: more lines than these are a hatching, not marks."""
NOTES_MAX = 30
NOTE = "note"
"""In the place of an action."""
NOTED = "#7a5cd0"
"""Of notes: neither hit, miss nor a judgement."""
NAMED_MAX = 90
"""Characters of a mark's words: names are as long as people make them."""

WORDS = {
    "watermark.set": "watermark of {} published",
    "watermark.clear": "watermark of {} taken back",
    "watermark.restore": "watermark of {} restored",
    "watermark.expire": "watermark of {} expired",
    "routing.set": "routing policy of {} published",
    "routing.clear": "routing policy of {} taken back",
    "routing.restore": "routing policy of {} restored",
    "routing.expire": "routing policy of {} expired",
    "rollout.start": "roll-out {} started",
    "rollout.advance": "roll-out {} advanced",
    "rollout.complete": "roll-out {} complete",
    "rollout.rollback": "roll-out {} rolled back",
    "placement.set": "prefix {} spread",
    "placement.revert": "spread of {} reverted",
    "placement.expire": "spread of {} expired",
    "template.publish": "template {} published",
    "template.retire": "template {} retired",
    "worker.drain": "{} drains",
    "worker.maintenance": "{} in maintenance",
    "worker.ready": "{} ready",
    "worker.create": "{} added",
    "worker.delete": "{} removed",
    "model.revoke": "model {} revoked",
    "tenant.suspend": "tenant {} suspended",
    "tenant.revoke": "tenant {} revoked",
    "namespace.suspend": "namespace {} suspended",
    "namespace.revoke": "namespace {} revoked",
    "namespace.rotate": "salt of {} rotated",
    "key.revoke": "key {} revoked",
}
"""Action of the audit log → words; {} = what it was done to. Other actions move no figure."""


@dataclass(frozen=True, slots=True)
class Mark:
    at: datetime
    words: str


@dataclass(frozen=True, slots=True)
class Note:
    begins_at: datetime
    ends_at: datetime
    words: str


@dataclass(frozen=True, slots=True)
class Timeline:
    marks: list[Mark]
    notes: list[Note]


def timeline_of(scope: Scope, *, now: datetime) -> Timeline:
    """Changes within the scope's time and notes that touch it, oldest first. A scope with a tenant has that tenant's
    alone. One query of both: every page with a chart asks it."""
    changes = AuditEntry.objects.filter(at__gte=scope.from_, at__lt=scope.to, action__in=WORDS)
    if scope.tenant:
        changes = changes.filter(about([scope.tenant]))
    notes = notes_within(scope.from_, scope.to, tenant=scope.tenant).annotate(kind=Value(NOTE))
    found = (
        changes.order_by()
        .annotate(till=F("at"))
        .values_list("at", "till", "action", "object_id", "actor")
        .union(notes.order_by().values_list("begins_at", "ends_at", "kind", "text", "author"), all=True)
        .order_by("-till")[: MARKS_MAX + NOTES_MAX]
    )
    rows = list(found)
    marked = [Mark(at, _words(kind, subject, actor)) for at, _, kind, subject, actor in rows if kind != NOTE]
    noted = [Note(at, till, f"{text} ({person(author)})") for at, till, kind, text, author in rows if kind == NOTE]
    return Timeline(marked[:MARKS_MAX][::-1], noted[:NOTES_MAX][::-1])


def _words(action: str, subject: str, actor: str) -> str:
    return f"{WORDS[action].format(subject)} by {person(actor)}"[:NAMED_MAX]


def with_marks(figure: Figure, data: PageData) -> Figure:
    """The figure with a band for each note and a dotted line at each change, in words on hover."""
    timeline = data.ask(timeline_of)
    marks, notes = timeline.marks, timeline.notes
    if not marks and not notes:
        return figure
    zone = data.state.zone
    times = [_axis(mark.at, zone) for mark in marks]
    line = {"color": GREY, "width": 1, "dash": "dot"}
    lines: list[Figure] = [
        {"type": "line", "xref": "x", "yref": "paper", "x0": at, "x1": at, "y0": 0, "y1": 1, "line": line}
        for at in times
    ]
    # Cut to the shown time: a band must not stretch the axis.
    spans = [(max(note.begins_at, data.scope.from_), min(note.ends_at, data.scope.to)) for note in notes]
    bands: list[Figure] = [
        {
            "type": "rect", "xref": "x", "yref": "paper", "x0": _axis(begin, zone), "x1": _axis(end, zone),
            "y0": 0, "y1": 1, "layer": "below", "fillcolor": NOTED, "opacity": 0.14,
            "line": {"width": 1, "color": NOTED},
        }
        for begin, end in spans
    ]  # fmt: skip
    figure["layout"] |= {
        "shapes": [*bands, *figure["layout"].get("shapes", []), *lines],
        "yaxis2": {"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True},
    }
    if notes:
        middles = [_axis(begin + (end - begin) / 2, zone) for begin, end in spans]
        figure["data"].append(_heads("Notes", middles, [note.words for note in notes], "square", NOTED))
    if marks:
        figure["data"].append(_heads("Changes", times, [mark.words for mark in marks], "triangle-down", GREY))
    return figure


def _axis(at: datetime, zone: ZoneInfo) -> str:
    return at.astimezone(zone).strftime("%Y-%m-%d %H:%M:%S")


def _heads(name: str, times: list[str], texts: list[str], symbol: str, colour: str) -> Figure:
    """Marks at the upper edge, each with its words. Hovering text is escaped: Plotly reads tags and links in it."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": times,
        "y": [1] * len(times),
        "yaxis": "y2",
        "text": [escape(text) for text in texts],
        "hovertemplate": "%{text}<extra></extra>",
        "cliponaxis": False,
        "marker": {"symbol": symbol, "size": 8, "color": colour},
    }


def marks_column(series: Series, data: PageData) -> list[tuple[str, list[str | None]]]:
    """Changes and notes of each bucket in words, as columns of the chart's table; none where there are none."""
    changes: dict[int, list[str]] = {}
    for mark in data.ask(timeline_of).marks:
        changes.setdefault(_bucket(series, mark.at), []).append(mark.words)
    noted: dict[int, list[str]] = {}
    for note in data.ask(timeline_of).notes:
        for index in range(max(0, _bucket(series, note.begins_at)), _bucket(series, note.ends_at) + 1):
            noted.setdefault(index, []).append(note.words)
    columns = (("changes", changes), ("notes", noted))
    return [(name, _column(said, len(series.buckets))) for name, said in columns if said]


def _bucket(series: Series, at: datetime) -> int:
    """Index of the moment's bucket; outside of the series it lies beyond its ends."""
    return int((at - series.buckets[0]).total_seconds() // series.step_s) if series.buckets else -1


def _column(said: dict[int, list[str]], buckets: int) -> list[str | None]:
    return ["; ".join(said[index]) if index in said else None for index in range(buckets)]

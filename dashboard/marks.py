"""Changes from the audit log on the time axis: what was published, rolled out, drained, revoked while figures moved."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from controlplane.audit.models import AuditEntry
from controlplane.namespaces.change_log import about
from controlplane.telemetry.figures import Series
from controlplane.telemetry.windows import Scope
from dashboard.charts.base import GREY, Figure
from dashboard.data import PageData
from dashboard.words import person

MARKS_MAX = 60
"""Newest first: more lines than these are a hatching, not marks."""
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


def marks_of(scope: Scope, *, now: datetime) -> list[Mark]:
    """Within the scope's time, oldest first. A scope with a tenant has that tenant's changes alone. One query."""
    rows = AuditEntry.objects.filter(at__gte=scope.from_, at__lt=scope.to, action__in=WORDS)
    if scope.tenant:
        rows = rows.filter(about([scope.tenant]))
    newest = rows.order_by("-at").values_list("at", "action", "object_id", "actor")[:MARKS_MAX]
    return [Mark(at, _words(action, subject, actor)) for at, action, subject, actor in reversed(newest)]


def _words(action: str, subject: str, actor: str) -> str:
    return f"{WORDS[action].format(subject)} by {person(actor)}"[:NAMED_MAX]


def with_marks(figure: Figure, data: PageData) -> Figure:
    """The figure with a dotted line at each change, and its words on hover."""
    marks = data.ask(marks_of)
    if not marks:
        return figure
    times = [mark.at.astimezone(data.state.zone).strftime("%Y-%m-%d %H:%M:%S") for mark in marks]
    line = {"color": GREY, "width": 1, "dash": "dot"}
    lines: list[Figure] = [
        {"type": "line", "xref": "x", "yref": "paper", "x0": at, "x1": at, "y0": 0, "y1": 1, "line": line}
        for at in times
    ]
    figure["layout"] |= {
        "shapes": [*figure["layout"].get("shapes", []), *lines],
        "yaxis2": {"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True},
    }
    figure["data"].append(
        {
            "type": "scatter",
            "mode": "markers",
            "name": "Changes",
            "x": times,
            "y": [1] * len(marks),
            "yaxis": "y2",
            "text": [mark.words for mark in marks],
            "hovertemplate": "%{text}<extra></extra>",
            "cliponaxis": False,
            "marker": {"symbol": "triangle-down", "size": 8, "color": GREY},
        }
    )
    return figure


def marks_column(series: Series, data: PageData) -> list[tuple[str, list[str | None]]]:
    """The changes of each bucket in words, as a column of the chart's table; none where nothing was changed."""
    named: dict[int, list[str]] = {}
    for mark in data.ask(marks_of):
        index = int((mark.at - series.buckets[0]).total_seconds() // series.step_s) if series.buckets else -1
        named.setdefault(index, []).append(mark.words)
    if not named:
        return []
    return [("changes", ["; ".join(named[at]) if at in named else None for at in range(len(series.buckets))])]

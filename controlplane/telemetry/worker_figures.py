"""Sums of a range for each worker: for lists with a row a worker."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Max, Sum

from controlplane.telemetry.models import WorkerRollup
from controlplane.telemetry.rollup_rows import segments_q
from controlplane.telemetry.windows import WIDTHS_S, Scope, aligned_pair, cover, floor_to


@dataclass(frozen=True, slots=True)
class EventSums:
    gaps: int
    """Event gaps of the range."""
    seconds: int
    """That the subscriber reported of the worker; 0 = nothing is known of its events."""


def event_sums(scope: Scope, *, now: datetime) -> dict[str, EventSums]:
    """By worker; honours the scope's pool. One query."""
    span, _ = aligned_pair(scope, now=now)
    rows = WorkerRollup.objects.filter(segments_q(cover(span, now=now)))
    if scope.pool:
        rows = rows.filter(worker__startswith=f"{scope.pool}/")
    sums = rows.order_by().values("worker").annotate(gaps=Sum("event_gaps"), seconds=Sum("kv_samples"))
    return {row["worker"]: EventSums(row["gaps"] or 0, row["seconds"] or 0) for row in sums}


def running_at(moments: dict[str, datetime]) -> dict[str, float]:
    """Worker → most requests that ran there in the ten seconds of its moment, while those rows are kept. One query."""
    if not moments:
        return {}
    width_s = WIDTHS_S[0]
    starts = {worker: floor_to(at, width_s) for worker, at in moments.items()}
    rows = WorkerRollup.objects.filter(width_s=width_s, worker__in=starts, start__in=set(starts.values()))
    found = rows.order_by().values("worker", "start").annotate(most=Max("running_max"))
    return {row["worker"]: row["most"] for row in found if row["start"] == starts[row["worker"]]}

"""Reads rollup rows for the selectors: which rows a scope means, and the fields asked for, in one query each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Any

from django.db.models import Q

from controlplane.telemetry.models import RequestRollup, WorkerRollup
from controlplane.telemetry.windows import Grid, Scope, Segment
from router.contract.histogram import quantile

REQUEST_DIMS = ("tenant", "namespace", "pool", "worker", "model")
PRESENCE = {name: "" for name in (*REQUEST_DIMS, "template")}
"""Dimensions of the row that every reporting router adds to: it tells an idle bucket (0) from a gap (no row)."""


def segments_q(segments: Sequence[Segment]) -> Q:
    parts = [Q(width_s=part.width_s, start__gte=part.from_, start__lt=part.to) for part in segments]
    return reduce(or_, parts)


def request_rows(
    scope: Scope, segments: Sequence[Segment], fields: Sequence[str], *, presence: bool = True
) -> list[tuple[datetime, dict[str, Any]]]:
    """(start, fields) of the request rows in scope.

    With `presence`, a bucket in which routers reported but nothing of the scope happened comes with no fields.
    """
    wanted = {name: getattr(scope, name) for name in REQUEST_DIMS if getattr(scope, name)}
    in_time = RequestRollup.objects.filter(segments_q(segments))
    rows = [(row.pop("start"), row) for row in in_time.filter(**wanted).values("start", *fields)]
    if presence and wanted:
        rows += [(start, {}) for start in in_time.filter(**PRESENCE).values_list("start", flat=True)]
    return rows


def reported_starts(grid: Grid) -> list[datetime]:
    """Starts of the rows in which any router reported."""
    rows = RequestRollup.objects.filter(segments_q([Segment(grid.width_s, grid.first, grid.end)]), **PRESENCE)
    return list(rows.values_list("start", flat=True))


def worker_rows(scope: Scope, grid: Grid, fields: Sequence[str]) -> list[tuple[datetime, str, dict[str, Any]]]:
    """(start, worker, fields) of the workers' rows: pool and worker of the scope count, its tenants do not."""
    rows = WorkerRollup.objects.filter(segments_q([Segment(grid.width_s, grid.first, grid.end)]))
    if scope.worker:
        rows = rows.filter(worker=scope.worker)
    elif scope.pool:
        rows = rows.filter(worker__startswith=f"{scope.pool}/")
    return [(row.pop("start"), row.pop("worker"), row) for row in rows.values("start", "worker", *fields)]


def quantile_of(buckets: Mapping[str, int], q: float) -> float | None:
    """Of a stored histogram, whose bucket indexes are text."""
    return quantile({int(index): count for index, count in buckets.items()}, q)

"""Reads rollup rows for the selectors: which rows a scope means, and the fields asked for, in one query each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Any

from django.db.models import Q

from controlplane.telemetry.models import RequestRollup, RequestTotal, WorkerRollup
from controlplane.telemetry.windows import Grid, Scope, Segment
from router.contract.histogram import quantile

REQUEST_DIMS = ("tenant", "namespace", "pool", "worker", "model")
WorkerRows = list[tuple[datetime, str, dict[str, Any]]]
"""(start, worker, fields)."""
TOTAL_DIMS = ("pool", "model")
"""Dimensions of RequestTotal. Its row without any is the one that every reporting router adds to: it tells an idle
bucket (0) from a gap (no row)."""


def segments_q(segments: Sequence[Segment]) -> Q:
    parts = [Q(width_s=part.width_s, start__gte=part.from_, start__lt=part.to) for part in segments]
    return reduce(or_, parts)


@dataclass(frozen=True, slots=True)
class RequestReading:
    """Request rows of several segments, read at once: each question takes those of its own."""

    rows: list[tuple[int, datetime, dict[str, Any]]]
    """(width, start, fields); without fields where routers reported and nothing of the scope happened."""

    def within(self, segments: Sequence[Segment]) -> list[tuple[datetime, dict[str, Any]]]:
        return [
            (start, values)
            for width_s, start, values in self.rows
            if any(part.width_s == width_s and part.from_ <= start < part.to for part in segments)
        ]


def request_rows(
    scope: Scope, segments: Sequence[Segment], fields: Sequence[str], *, presence: bool = True
) -> list[tuple[datetime, dict[str, Any]]]:
    """(start, fields) of the request rows in scope.

    With `presence`, a bucket in which routers reported but nothing of the scope happened comes with no fields.
    """
    return [(start, values) for _, start, values in read_requests(scope, segments, fields, presence=presence).rows]


def read_requests(
    scope: Scope, segments: Sequence[Segment], fields: Sequence[str], *, presence: bool = True
) -> RequestReading:
    """One query, and one for the presence of a scope with dimensions. Segments may overlap: a row comes once."""
    wanted = {name: getattr(scope, name) for name in REQUEST_DIMS if getattr(scope, name)}
    narrow = {*wanted, *fields} & (set(REQUEST_DIMS) - set(TOTAL_DIMS))
    rows_of: Any = RequestRollup if narrow else RequestTotal
    if scope.namespace:
        # A namespace's name begins with its tenant's, which has an index.
        wanted["tenant"] = scope.tenant or scope.namespace.partition("/")[0]
    found = rows_of.objects.filter(segments_q(segments), **wanted).values("width_s", "start", *fields)
    rows = [(row.pop("width_s"), row.pop("start"), row) for row in found]
    if presence and wanted:
        rows += [(width_s, start, {}) for width_s, start in _reported(segments)]
    return RequestReading(rows)


def reported_starts(grid: Grid) -> list[datetime]:
    """Starts of the rows in which any router reported."""
    return [start for _, start in _reported([Segment(grid.width_s, grid.first, grid.end)])]


def _reported(segments: Sequence[Segment]) -> list[tuple[int, datetime]]:
    rows = RequestTotal.objects.filter(segments_q(segments), pool="", model="")
    return list(rows.values_list("width_s", "start"))


def worker_rows(scope: Scope, grid: Grid, fields: Sequence[str]) -> WorkerRows:
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

"""Cells of the heat map worker × time. Of a large fleet the workers with the highest mean are read and drawn."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from datetime import datetime
from typing import Any

from django.db.models import Avg, F, FloatField, QuerySet, Sum, Value
from django.db.models.functions import NullIf

from controlplane.telemetry.bucket_reading import Place
from controlplane.telemetry.models import RequestRollup, WorkerRollup
from controlplane.telemetry.rollup_rows import REQUEST_DIMS, reported_starts, segments_q
from controlplane.telemetry.windows import WIDTHS_S, Grid, Scope, Segment, floor_to, grid_of
from controlplane.telemetry.worker_sums import rows_of_workers

HEAT_ROWS_MAX = 24
"""Rows that can be told apart in a panel; a larger fleet is narrowed by pool, or looked at as a table."""

HEAT_COLUMNS_MAX = 120

Cells = dict[str, list[float | None]]
"""Worker → one value a bucket."""

_MEASURE_FIELDS = {
    # measure: (sum, divisor, factor)
    "kv_use": ("kv_use_sum", "kv_use_samples", 1.0),
    "running": ("running_sum", "running_samples", 1.0),
    "hit_share": ("prefix_hit_tokens", "prefix_query_tokens", 1.0),
    "evictions": ("removed_blocks", "kv_samples", 60.0),
}
_RANKED_BUCKETS_MIN = 5
"""The ranking reads the widest rows of which the range has as many."""


def worker_cells(scope: Scope, grid: Grid, measure: str, workers: Collection[str]) -> Cells:
    """One query."""
    part, whole, factor = _MEASURE_FIELDS[measure]
    rows = rows_of_workers(scope).filter(segments_q([grid.segment]))
    if len(workers) > HEAT_ROWS_MAX:
        rows = rows.filter(worker__in=_ranked(scope, grid, part, whole)[:HEAT_ROWS_MAX])
    points = rows.order_by().annotate(point=Place(grid)).values_list("worker", "point")
    cells: Cells = {}
    for worker, point, value, divisor in points.annotate(value=Sum(part), divisor=Sum(whole)):
        row = cells.setdefault(worker, [None] * grid.count)
        row[point] = value * factor / divisor if divisor else None
    return cells


def heat_grid(scope: Scope, *, now: datetime) -> Grid:
    """The scope's grid with so few columns that a cell can be seen."""
    grid = grid_of(scope, now=now)
    step_s = grid.step_s * math.ceil(grid.count / HEAT_COLUMNS_MAX)
    first = floor_to(grid.first, step_s)
    return replace(grid, first=first, step_s=step_s, count=math.ceil((grid.end - first).total_seconds() / step_s))


def _ranked(scope: Scope, grid: Grid, part: str, whole: str) -> QuerySet[WorkerRollup, Any]:
    """Workers by their mean, highest first."""
    span_s = grid.step_s * grid.count
    wide = [width_s for width_s in WIDTHS_S if width_s >= grid.width_s and span_s >= width_s * _RANKED_BUCKETS_MIN]
    width_s = max(wide, default=grid.width_s)
    rows = rows_of_workers(scope).filter(segments_q([Segment(width_s, grid.first, grid.end)]))
    mean = Avg(F(part) / NullIf(F(whole) * Value(1.0), Value(0.0)), output_field=FloatField())
    return rows.values("worker").annotate(mean=mean).exclude(mean=None).order_by("-mean", "worker").values("worker")


def request_cells(scope: Scope, grid: Grid) -> Cells:
    """Requests per second by worker; 0 where routers reported and sent it nothing. Two queries."""
    reported = {index for start in reported_starts(grid) if (index := grid.index_of(start)) is not None}
    idle = [0.0 if point in reported else None for point in range(grid.count)]
    wanted = {name: getattr(scope, name) for name in REQUEST_DIMS if getattr(scope, name)}
    found = RequestRollup.objects.filter(segments_q([grid.segment]), **wanted).exclude(worker="")
    cells: Cells = {}
    points = found.order_by().annotate(point=Place(grid)).values_list("worker", "point")
    for worker, point, requests in points.annotate(Sum("requests")):
        row = cells.setdefault(worker, idle.copy())
        row[point] = requests / grid.step_s
    return cells


def hottest(cells: Cells, known: Collection[str]) -> tuple[list[str], int]:
    """The rows to draw, by name, and how many workers are left out."""
    everyone = sorted(cells.keys() | set(known))
    if len(everyone) <= HEAT_ROWS_MAX:
        return everyone, 0
    busiest = sorted(cells, key=lambda worker: (-_mean(cells[worker]), worker))[:HEAT_ROWS_MAX]
    return sorted(busiest), len(everyone) - len(busiest)


def _mean(values: list[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else 0.0

"""Questions the dashboard and the reports ask of the rollups. Everything unknown is None; sums over buckets
without rows are gaps. Each function takes at most three queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from controlplane.fleet.models import Worker
from controlplane.telemetry.figures import (
    HEAT_MEASURES,
    ChurnSeries,
    HeatMap,
    HitTokensSeries,
    HotPrefix,
    SourceSeries,
    SpillSeries,
    TtftSeries,
)
from controlplane.telemetry.merge import HEAT, REQUESTS, WORKERS, Values, merge_into, merged_counts
from controlplane.telemetry.models import PrefixHeatRollup
from controlplane.telemetry.rollup_rows import (
    quantile_of,
    reported_starts,
    request_rows,
    segments_q,
    worker_rows,
)
from controlplane.telemetry.sources import freshness, routers
from controlplane.telemetry.tiles import fleet_tiles
from controlplane.telemetry.windows import Grid, Scope, Segment, aligned_pair, cover, floor_to, grid_of

__all__ = [
    "churn_series",
    "fleet_tiles",
    "freshness",
    "heat_map",
    "hit_tokens_series",
    "hot_prefixes",
    "last_minutes",
    "prompt_by_source_series",
    "routers",
    "spill_series",
    "ttft_series",
]


def last_minutes(minutes: float, *, now: datetime | None = None, tenant: str = "", namespace: str = "") -> Scope:
    """The scope that ends now."""
    to = now or timezone.now()
    return Scope(from_=to - timedelta(minutes=minutes), to=to, tenant=tenant, namespace=namespace)


def hit_tokens_series(scope: Scope, *, now: datetime | None = None) -> HitTokensSeries:
    now = now or timezone.now()
    fields = ("prompt_tokens", "hit_tokens", "predicted_hit_tokens", "hit_prompt_tokens")
    grid, sums = _request_buckets(scope, fields, now)
    return HitTokensSeries(
        **_head(grid, now),
        prompt_tokens=_column(sums, "prompt_tokens"),
        delivered_hit_tokens=_column(sums, "hit_tokens"),
        predicted_hit_tokens=_column(sums, "predicted_hit_tokens"),
        unknown_prompt_share=[_unknown_share(row) for row in sums],
    )


def _unknown_share(row: Values | None) -> float | None:
    if row is None or not row.get("prompt_tokens"):
        return None
    known: float = row.get("hit_prompt_tokens", 0) / row["prompt_tokens"]
    return max(0.0, 1 - known)


def prompt_by_source_series(scope: Scope, *, now: datetime | None = None) -> SourceSeries:
    """Honours the scope's pool and worker only: workers do not know tenants."""
    now = now or timezone.now()
    grid = grid_of(scope, now=now)
    totals: list[dict[str, float] | None] = [None] * grid.count
    for start, _, values in worker_rows(scope, grid, ("delta_samples", "prompt_tokens_by_source")):
        index = grid.index_of(start)
        if index is not None and values["delta_samples"]:
            totals[index] = merged_counts(totals[index] or {}, values["prompt_tokens_by_source"])
    sources = sorted({source for row in totals if row for source in row})
    by_source = {name: [None if row is None else row.get(name, 0.0) for row in totals] for name in sources}
    return SourceSeries(**_head(grid, now), by_source=by_source)


def ttft_series(scope: Scope, *, now: datetime | None = None) -> TtftSeries:
    now = now or timezone.now()
    grid, sums = _request_buckets(scope, ("ttft_hit", "ttft_miss"), now)

    def column(name: str, q: float) -> list[float | None]:
        return [quantile_of(row.get(name, {}), q) if row else None for row in sums]

    hit_p50, miss_p50 = column("ttft_hit", 0.5), column("ttft_miss", 0.5)
    return TtftSeries(
        **_head(grid, now),
        hit_p50_ms=hit_p50,
        hit_p95_ms=column("ttft_hit", 0.95),
        miss_p50_ms=miss_p50,
        miss_p95_ms=column("ttft_miss", 0.95),
        delta_p50_ms=[
            None if hit is None or miss is None else miss - hit for hit, miss in zip(hit_p50, miss_p50, strict=True)
        ],
        hit_count=[None if row is None else float(sum(row.get("ttft_hit", {}).values())) for row in sums],
        miss_count=[None if row is None else float(sum(row.get("ttft_miss", {}).values())) for row in sums],
    )


def heat_map(scope: Scope, measure: str, *, now: datetime | None = None) -> HeatMap:
    """`measure`: a key of `figures.HEAT_MEASURES`; anything else raises ValueError.

    All measures but `requests` come from the workers and honour the scope's pool and worker only.
    """
    if measure not in HEAT_MEASURES:
        raise ValueError(f"unknown measure {measure!r}")
    now = now or timezone.now()
    grid = grid_of(scope, now=now)
    cells = _request_cells(scope, grid) if measure == "requests" else _worker_cells(scope, grid, measure)
    workers = sorted(cells.keys() | _workers_of(scope))
    empty: list[float | None] = [None] * grid.count
    return HeatMap(
        **_head(grid, now),
        measure=measure,
        unit=HEAT_MEASURES[measure],
        workers=workers,
        values=[cells.get(worker, empty) for worker in workers],
    )


def _workers_of(scope: Scope) -> set[str]:
    listed = Worker.objects.select_related("pool")
    names = {worker.worker_id for worker in (listed.filter(pool__slug=scope.pool) if scope.pool else listed)}
    return names & {scope.worker} if scope.worker else names


_MEASURE_FIELDS = {
    # measure: (sum, divisor, factor)
    "kv_use": ("kv_use_sum", "kv_use_samples", 1.0),
    "running": ("running_sum", "running_samples", 1.0),
    "hit_share": ("prefix_hit_tokens", "prefix_query_tokens", 1.0),
    "evictions": ("removed_blocks", "kv_samples", 60.0),
}


def _worker_cells(scope: Scope, grid: Grid, measure: str) -> dict[str, list[float | None]]:
    part, whole, factor = _MEASURE_FIELDS[measure]
    sums: dict[str, list[list[float]]] = {}
    for start, worker, values in worker_rows(scope, grid, (part, whole)):
        index = grid.index_of(start)
        if index is not None:
            cell = sums.setdefault(worker, [[0.0, 0.0] for _ in range(grid.count)])[index]
            cell[0] += values[part]
            cell[1] += values[whole]
    return {
        worker: [None if not divisor else value * factor / divisor for value, divisor in cells]
        for worker, cells in sums.items()
    }


def _request_cells(scope: Scope, grid: Grid) -> dict[str, list[float | None]]:
    """Requests per second by worker; 0 where routers reported and sent it nothing."""
    reported = {index for start in reported_starts(grid) if (index := grid.index_of(start)) is not None}
    cells: dict[str, list[float | None]] = {}
    segments = [Segment(grid.width_s, grid.first, grid.end)]
    for start, values in request_rows(scope, segments, ("worker", "requests"), presence=False):
        index = grid.index_of(start)
        if index is not None and values["worker"]:
            row = cells.setdefault(values["worker"], [0.0 if i in reported else None for i in range(grid.count)])
            row[index] = (row[index] or 0.0) + values["requests"] / grid.step_s
    return cells


def churn_series(scope: Scope, *, now: datetime | None = None) -> ChurnSeries:
    """Honours the scope's pool and worker only. A worker that reported half of a bucket counts at its own rate."""
    now = now or timezone.now()
    grid = grid_of(scope, now=now)
    fields = ("kv_samples", "stored_blocks", "removed_blocks", "restored_blocks", "event_gaps")
    workers: dict[tuple[int, str], Values] = {}
    for start, worker, values in worker_rows(scope, grid, fields):
        index = grid.index_of(start)
        if index is not None:
            merge_into(WORKERS, workers.setdefault((index, worker), {}), values)
    rates: list[Values | None] = [None] * grid.count
    for (index, _), values in workers.items():
        if values["kv_samples"]:
            rate = {name: values[name] * 60 / values["kv_samples"] for name in fields[1:4]}
            merge_into(WORKERS, _at(rates, index), rate | {"event_gaps": values["event_gaps"]})
    stored, removed = _column(rates, "stored_blocks"), _column(rates, "removed_blocks")
    return ChurnSeries(
        **_head(grid, now),
        stored_per_min=stored,
        removed_per_min=removed,
        net_per_min=[None if s is None or r is None else s - r for s, r in zip(stored, removed, strict=True)],
        restored_per_min=_column(rates, "restored_blocks"),
        gaps=_column(rates, "event_gaps"),
    )


def spill_series(scope: Scope, *, now: datetime | None = None) -> SpillSeries:
    now = now or timezone.now()
    grid, sums = _request_buckets(scope, ("requests", "spills"), now)
    reasons = sorted({reason for row in sums if row for reason in row.get("spills", {})})
    by_reason = {name: [None if row is None else float(row.get("spills", {}).get(name, 0)) for row in sums]
                 for name in reasons}  # fmt: skip
    return SpillSeries(**_head(grid, now), by_reason=by_reason, requests=_column(sums, "requests"))


def hot_prefixes(scope: Scope, *, limit: int = 20, now: datetime | None = None) -> list[HotPrefix]:
    """Most requested prefixes, busiest first. Honours tenant, namespace and pool."""
    now = now or timezone.now()
    span, _ = aligned_pair(scope, now=now)
    rows = PrefixHeatRollup.objects.filter(segments_q(cover(span, now=now)))
    if scope.tenant:
        rows = rows.filter(namespace__startswith=f"{scope.tenant}/")
    for name in ("namespace", "pool"):
        if getattr(scope, name):
            rows = rows.filter(**{name: getattr(scope, name)})
    totals: dict[tuple[str, str, str], Values] = {}
    for row in rows.values("namespace", "pool", "prefix", "tokens", "requests", "by_worker"):
        key = (row["namespace"], row["pool"], row["prefix"])
        merge_into(HEAT, totals.setdefault(key, {}), row)
    busiest = sorted(totals.items(), key=lambda item: (-item[1]["requests"], item[0]))[:limit]
    return [_hot_prefix(key, values) for key, values in busiest if values["requests"]]


def _hot_prefix(key: tuple[str, str, str], values: Values) -> HotPrefix:
    namespace, pool, prefix = key
    by_worker = values.get("by_worker", {})
    return HotPrefix(
        prefix=prefix,
        namespace=namespace,
        pool=pool,
        tokens=values["tokens"],
        requests=values["requests"],
        by_worker=by_worker,
        top_share=max(by_worker.values(), default=0) / values["requests"],
    )


def _request_buckets(scope: Scope, fields: Sequence[str], now: datetime) -> tuple[Grid, list[Values | None]]:
    """Summed fields for each bucket of the scope's grid; None where nobody reported."""
    grid = grid_of(scope, now=now)
    sums: list[Values | None] = [None] * grid.count
    for start, values in request_rows(scope, [Segment(grid.width_s, grid.first, grid.end)], fields):
        index = grid.index_of(start)
        if index is not None:
            merge_into(REQUESTS, _at(sums, index), values)
    return grid, sums


def _at(rows: list[Values | None], index: int) -> Values:
    row = rows[index]
    if row is None:
        row = rows[index] = {}
    return row


def _column(rows: Sequence[Values | None], name: str) -> list[float | None]:
    return [None if row is None else float(row.get(name, 0)) for row in rows]


def _head(grid: Grid, now: datetime) -> dict[str, Any]:
    open_from = floor_to(now, grid.step_s)
    # The grid may begin off the clock's own multiples of a long step: the open bucket is the one that holds now.
    index = grid.index_of(now)
    if index is not None:
        open_from = grid.starts()[index]
    return {"buckets": grid.starts(), "step_s": grid.step_s, "open_from": open_from if open_from < grid.end else None}

"""Questions the dashboard and the reports ask of the rollups. Everything unknown is None; sums over buckets
without rows are gaps. Each function takes at most three queries.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from django.utils import timezone

from controlplane.fleet.models import Worker
from controlplane.telemetry.bucket_reading import read_buckets
from controlplane.telemetry.figures import (
    HEAT_MEASURES,
    ChurnSeries,
    HeatMap,
    HitTokensSeries,
    HotPrefix,
    KvUseSeries,
    SourceSeries,
    SpillSeries,
    TtftSeries,
)
from controlplane.telemetry.heat import heat_grid, hottest, request_cells, worker_cells
from controlplane.telemetry.merge import HEAT, REQUESTS, Values, merge_into
from controlplane.telemetry.models import PrefixHeatRollup
from controlplane.telemetry.rollup_rows import RequestReading, quantile_of, segments_q
from controlplane.telemetry.sources import freshness, routers
from controlplane.telemetry.tiles import fleet_tiles
from controlplane.telemetry.windows import Grid, Scope, aligned_pair, cover, grid_of, series_head
from controlplane.telemetry.worker_sums import SOURCES, Sums, worker_sums

__all__ = [
    "churn_series",
    "fleet_tiles",
    "freshness",
    "heat_map",
    "hit_tokens_series",
    "hits_and_ttft",
    "hot_prefixes",
    "kv_use_series",
    "last_minutes",
    "prompt_by_source_series",
    "routers",
    "sources_and_churn",
    "spill_series",
    "ttft_series",
]


def last_minutes(minutes: float, *, now: datetime | None = None, tenant: str = "", namespace: str = "") -> Scope:
    """The scope that ends now."""
    to = now or timezone.now()
    return Scope(from_=to - timedelta(minutes=minutes), to=to, tenant=tenant, namespace=namespace)


_HIT_FIELDS = ("prompt_tokens", "hit_tokens", "predicted_hit_tokens", "hit_prompt_tokens")
_TTFT_FIELDS = ("ttft_hit", "ttft_miss")
SERIES_FIELDS = (*_HIT_FIELDS, *_TTFT_FIELDS)


def hit_tokens_series(scope: Scope, *, now: datetime | None = None) -> HitTokensSeries:
    now = now or timezone.now()
    return _hit_tokens(*_request_buckets(scope, _HIT_FIELDS, now), now)


def hits_and_ttft(
    scope: Scope, *, now: datetime | None = None, reading: RequestReading | None = None
) -> tuple[HitTokensSeries, TtftSeries]:
    """`hit_tokens_series` and `ttft_series` of one reading of the rows, which may be of more than the scope's grid."""
    now = now or timezone.now()
    grid, sums = _request_buckets(scope, SERIES_FIELDS, now, reading)
    return _hit_tokens(grid, sums, now), _ttft(grid, sums, now)


def _hit_tokens(grid: Grid, sums: list[Values | None], now: datetime) -> HitTokensSeries:
    return HitTokensSeries(
        **series_head(grid, now),
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


def sources_and_churn(
    scope: Scope, *, now: datetime | None = None, sums: WorkerSums | None = None
) -> tuple[SourceSeries, ChurnSeries]:
    """`prompt_by_source_series` and `churn_series` of one reading of the rows, which may be of more than the grid."""
    now = now or timezone.now()
    grid = grid_of(scope, now=now)
    buckets = _worker_buckets(grid, worker_sums(scope, [grid.segment]) if sums is None else sums)
    return _by_source(grid, buckets, now), _churn(grid, buckets, now)


def prompt_by_source_series(scope: Scope, *, now: datetime | None = None) -> SourceSeries:
    """Honours the scope's pool and worker only: workers do not know tenants."""
    return sources_and_churn(scope, now=now)[0]


def churn_series(scope: Scope, *, now: datetime | None = None) -> ChurnSeries:
    """Honours the scope's pool and worker only. A worker that reported half of a bucket counts at its own rate."""
    return sources_and_churn(scope, now=now)[1]


def kv_use_series(scope: Scope, *, now: datetime, sums: WorkerSums | None = None) -> KvUseSeries:
    """KV use of the fullest worker. Honours the scope's pool and worker only."""
    grid = grid_of(scope, now=now)
    buckets = _worker_buckets(grid, worker_sums(scope, [grid.segment]) if sums is None else sums)
    worst = [max((row["kv_use"] for row in rows if row["kv_use"] is not None), default=None) for rows in buckets]
    return KvUseSeries(**series_head(grid, now), kv_use_max=worst)


WorkerSums = list[tuple[int, datetime, Sums]]
_Buckets = list[list[Sums]]
"""The rows of each bucket of a grid."""


def _worker_buckets(grid: Grid, sums: WorkerSums) -> _Buckets:
    buckets: _Buckets = [[] for _ in range(grid.count)]
    for width_s, start, row in sums:
        index = grid.index_of(start) if width_s == grid.width_s else None
        if index is not None:
            buckets[index].append(row)
    return buckets


def _by_source(grid: Grid, buckets: _Buckets, now: datetime) -> SourceSeries:
    polled = [[row for row in rows if row["delta_samples"]] for rows in buckets]

    def total(name: str, factor: float = 1.0) -> list[float | None]:
        return [sum(row[name] or 0.0 for row in rows) * factor if rows else None for rows in polled]

    told = [name for name in SOURCES if any(row[f"source_{name}"] is not None for rows in polled for row in rows)]
    return SourceSeries(
        **series_head(grid, now),
        by_source={name: total(f"source_{name}") for name in told},
        loaded_bytes=total("loaded_bytes"),
        load_ms=total("load_s", 1000.0),
    )


def _churn(grid: Grid, buckets: _Buckets, now: datetime) -> ChurnSeries:
    heard = [[row for row in rows if row["stored"] is not None] for rows in buckets]

    def rate(name: str) -> list[float | None]:
        """Of a bucket of several rows: their mean, for each is a rate already."""
        return [sum(row[name] for row in rows) / len(rows) if rows else None for rows in heard]

    stored, removed = rate("stored"), rate("removed")
    return ChurnSeries(
        **series_head(grid, now),
        stored_per_min=stored,
        removed_per_min=removed,
        net_per_min=[None if s is None or r is None else s - r for s, r in zip(stored, removed, strict=True)],
        restored_per_min=rate("restored"),
        gaps=[sum(row["gaps"] for row in rows) if rows else None for rows in heard],
    )


def ttft_series(scope: Scope, *, now: datetime | None = None) -> TtftSeries:
    now = now or timezone.now()
    return _ttft(*_request_buckets(scope, _TTFT_FIELDS, now), now)


def _ttft(grid: Grid, sums: list[Values | None], now: datetime) -> TtftSeries:
    def column(name: str, q: float) -> list[float | None]:
        return [quantile_of(row.get(name, {}), q) if row else None for row in sums]

    hit_p50, miss_p50 = column("ttft_hit", 0.5), column("ttft_miss", 0.5)
    return TtftSeries(
        **series_head(grid, now),
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


def heat_map(
    scope: Scope, measure: str, *, now: datetime | None = None, workers: Collection[str] | None = None
) -> HeatMap:
    """`measure`: a key of `figures.HEAT_MEASURES`; anything else raises ValueError.

    All measures but `requests` come from the workers and honour the scope's pool and worker only. Of more than
    HEAT_ROWS_MAX workers those with the highest mean are drawn. `workers`: ids of all workers, by whoever has them.
    """
    if measure not in HEAT_MEASURES:
        raise ValueError(f"unknown measure {measure!r}")
    now = now or timezone.now()
    grid = heat_grid(scope, now=now)
    known = _workers_in(scope, _worker_ids() if workers is None else workers)
    cells = request_cells(scope, grid) if measure == "requests" else worker_cells(scope, grid, measure, known)
    shown, left_out = hottest(cells, known)
    empty: list[float | None] = [None] * grid.count
    return HeatMap(
        **series_head(grid, now),
        measure=measure,
        unit=HEAT_MEASURES[measure],
        workers=shown,
        values=[cells.get(worker, empty) for worker in shown],
        left_out=left_out,
    )


def _worker_ids() -> list[str]:
    return [worker.worker_id for worker in Worker.objects.select_related("pool")]


def _workers_in(scope: Scope, workers: Collection[str]) -> set[str]:
    if scope.worker:
        return {scope.worker} & set(workers)
    return {name for name in workers if not scope.pool or name.startswith(f"{scope.pool}/")}


def spill_series(scope: Scope, *, now: datetime | None = None) -> SpillSeries:
    now = now or timezone.now()
    grid, sums = _request_buckets(scope, ("requests", "spills"), now)
    reasons = sorted({reason for row in sums if row for reason in row.get("spills", {})})
    by_reason = {name: [None if row is None else float(row.get("spills", {}).get(name, 0)) for row in sums]
                 for name in reasons}  # fmt: skip
    return SpillSeries(**series_head(grid, now), by_reason=by_reason, requests=_column(sums, "requests"))


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


def _request_buckets(
    scope: Scope, fields: Sequence[str], now: datetime, reading: RequestReading | None = None
) -> tuple[Grid, list[Values | None]]:
    """Summed fields for each bucket of the scope's grid; None where nobody reported."""
    grid = grid_of(scope, now=now)
    sums: list[Values | None] = [None] * grid.count
    for start, values in (reading or read_buckets(scope, [grid.segment], fields)).within([grid.segment]):
        index = grid.index_of(start)
        if index is not None:
            merge_into(REQUESTS, _at(sums, index), {name: values[name] for name in fields} if values else values)
    return grid, sums


def _at(rows: list[Values | None], index: int) -> Values:
    row = rows[index]
    if row is None:
        row = rows[index] = {}
    return row


def _column(rows: Sequence[Values | None], name: str) -> list[float | None]:
    return [None if row is None else float(row.get(name, 0)) for row in rows]

"""Questions the dashboard and the reports ask of the rollups. Everything unknown is None; sums over buckets
without rows are gaps. Each function takes at most three queries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Max
from django.utils import timezone

from controlplane.fleet.models import Worker, WorkerStatus
from controlplane.fleet.selectors import stale_after_s, workers_table
from controlplane.telemetry.figures import (
    HEAT_MEASURES,
    ChurnSeries,
    Figure,
    HeatMap,
    HitTokensSeries,
    HotPrefix,
    RouterRow,
    SourceFreshness,
    SourceSeries,
    SpillSeries,
    Tiles,
    TtftSeries,
    WorkerCounts,
)
from controlplane.telemetry.merge import HEAT, REQUESTS, WORKERS, Values, merge_into, merged_counts
from controlplane.telemetry.models import PrefixHeatRollup, SourceProgress
from controlplane.telemetry.rollup_rows import (
    quantile_of,
    reported_starts,
    request_rows,
    segments_q,
    worker_rows,
)
from controlplane.telemetry.windows import Grid, Scope, Segment, aligned_pair, cover, floor_to, grid_of
from router.contract.histogram import Buckets, quantile

KV_SOURCE = "kv-events"
"""Source name of the KV-event subscriber's shipments."""


SOURCE_STALE_AFTER_S = 6.0
"""Sources speak every second; ingestion adds up to two."""
ROUTERS_LISTED_FOR = timedelta(minutes=10)

_TILE_FIELDS = (
    "requests", "errors", "usage_known", "hit_known", "hit_tokens", "hit_prompt_tokens", "predicted_hit_tokens",
    "saved_prefill_ms", "slo_met", "slo_known", "isolation_violations", "ttft_hit", "ttft_miss", "decision_us",
)  # fmt: skip


def last_minutes(minutes: float, *, now: datetime | None = None, tenant: str = "", namespace: str = "") -> Scope:
    """The scope that ends now."""
    to = now or timezone.now()
    return Scope(from_=to - timedelta(minutes=minutes), to=to, tenant=tenant, namespace=namespace)


def fleet_tiles(scope: Scope, *, now: datetime | None = None) -> Tiles:
    """The figures of the fleet page's head, each with the period before. Four queries."""
    now = now or timezone.now()
    current_span, previous_span = aligned_pair(scope, now=now)
    current = _summed(scope, current_span, now)
    previous = _summed(scope, previous_span, now)
    current_s = max(1.0, (min(scope.to, now) - current_span.from_).total_seconds())
    figures = _tile_figures(_Period(current, current_s), _Period(previous, previous_span.span_s))
    return Tiles(**figures, **_worker_figures(scope, now), data_age_s=_router_data_age_s(now))


@dataclass(frozen=True, slots=True)
class _Period:
    """Summed fields of a period, None when no row was there, and its length."""

    sums: Values | None
    seconds: float

    def share(self, part: str, whole: str) -> float | None:
        return _ratio(self.sums.get(part, 0), self.sums.get(whole, 0)) if self.sums else None

    def rate(self, name: str, factor: float = 1.0) -> float | None:
        return None if self.sums is None else self.sums.get(name, 0) * factor / self.seconds

    def quantile(self, name: str, q: float) -> float | None:
        return quantile_of(self.sums.get(name, {}), q) if self.sums else None

    def errors_per_s(self) -> float | None:
        return None if self.sums is None else sum(self.sums.get("errors", {}).values()) / self.seconds

    def count(self, name: str) -> float | None:
        return None if self.sums is None else float(self.sums.get(name, 0))


def _tile_figures(current: _Period, previous: _Period) -> dict[str, Any]:
    def figure(unit: str, ask: Callable[[_Period], float | None]) -> Figure:
        return Figure(value=ask(current), previous=ask(previous), unit=unit)

    return {
        "hit_share": figure("share", lambda p: p.share("hit_tokens", "hit_prompt_tokens")),
        "predicted_share": figure("share", lambda p: p.share("predicted_hit_tokens", "hit_prompt_tokens")),
        "hit_known_share": figure("share", lambda p: p.share("hit_known", "usage_known")),
        "prefill_tokens_saved_per_s": figure("tokens/s", lambda p: p.rate("hit_tokens")),
        # Milliseconds saved a second, times 3600 s/h, over 1000 ms/s.
        "gpu_seconds_saved_per_h": figure("s/h", lambda p: p.rate("saved_prefill_ms", 3.6)),
        "ttft_hit_p50_ms": figure("ms", lambda p: p.quantile("ttft_hit", 0.5)),
        "ttft_hit_p95_ms": figure("ms", lambda p: p.quantile("ttft_hit", 0.95)),
        "ttft_miss_p50_ms": figure("ms", lambda p: p.quantile("ttft_miss", 0.5)),
        "ttft_miss_p95_ms": figure("ms", lambda p: p.quantile("ttft_miss", 0.95)),
        "goodput_share": figure("share", lambda p: p.share("slo_met", "slo_known")),
        "requests_per_s": figure("requests/s", lambda p: p.rate("requests")),
        "errors_per_s": figure("errors/s", lambda p: p.errors_per_s()),
        "violations": figure("count", lambda p: p.count("isolation_violations")),
        "decision_p50_us": figure("us", lambda p: p.quantile("decision_us", 0.5)),
        "decision_p99_us": figure("us", lambda p: p.quantile("decision_us", 0.99)),
    }


def _summed(scope: Scope, span: Scope, now: datetime) -> Values | None:
    """All fields of the tiles over the span, or None when nobody reported."""
    total: Values = {}
    rows = request_rows(scope, cover(span, now=now), _TILE_FIELDS)
    for _, values in rows:
        merge_into(REQUESTS, total, values)
    return total if rows else None


def _worker_figures(scope: Scope, now: datetime) -> dict[str, Any]:
    rows = [row for row in workers_table(pool=scope.pool, now=now) if scope.worker in ("", row.worker_id)]
    up = [row for row in rows if row.health == "ok"]
    waiting = [row.waiting for row in up if row.waiting is not None]
    uses = [row.kv_use for row in up if row.kv_use is not None]
    ages = [row.poll_age_s for row in up if row.poll_age_s is not None]
    by_state = Counter(row.state for row in up)
    return {
        "waiting": Figure(sum(waiting) if waiting else None, None, "requests"),
        "kv_use_max": Figure(max(uses, default=None), None, "share"),
        "workers": WorkerCounts(
            ready=by_state[Worker.State.READY],
            drain=by_state[Worker.State.DRAIN],
            maintenance=by_state[Worker.State.MAINTENANCE],
            down=sum(row.health in ("down", "stale") for row in rows),
            unknown=sum(row.health == "unknown" for row in rows),
        ),
        "poll_age_s": max(ages, default=None),
    }


def _router_data_age_s(now: datetime) -> float | None:
    newest = SourceProgress.objects.exclude(source=KV_SOURCE).aggregate(newest=Max("last_at"))["newest"]
    return None if newest is None else max(0.0, (now - newest).total_seconds())


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


def freshness(*, now: datetime | None = None) -> list[SourceFreshness]:
    """Routers, KV-event subscriber and polls: when each last spoke. Two queries."""
    now = now or timezone.now()
    since = now - ROUTERS_LISTED_FOR
    spoken = SourceProgress.objects.values("source").annotate(newest=Max("last_at")).order_by("source")
    found = [
        _fresh(row["source"], "kv-events" if row["source"] == KV_SOURCE else "router", row["newest"], now)
        for row in spoken
        if row["newest"] >= since or row["source"] == KV_SOURCE
    ]
    polled = WorkerStatus.objects.aggregate(newest=Max("ok_at"))["newest"]
    return [*found, _fresh("polls", "polls", polled, now, stale_after_s=stale_after_s())]


def _fresh(
    source: str, kind: str, at: datetime | None, now: datetime, *, stale_after_s: float = SOURCE_STALE_AFTER_S
) -> SourceFreshness:
    age_s = None if at is None else max(0.0, (now - at).total_seconds())
    stale = age_s is None or age_s > stale_after_s
    return SourceFreshness(
        source=source, kind=kind, last_at=at, age_s=age_s, stale=stale, detail="" if at else "nothing arrived yet"
    )


def routers(*, now: datetime | None = None) -> list[RouterRow]:
    """Routers heard of within the last ten minutes, each by its newest boot."""
    now = now or timezone.now()
    rows = SourceProgress.objects.filter(last_at__gte=now - ROUTERS_LISTED_FOR).filter(router_state__isnull=False)
    newest = {row.source: row for row in rows.order_by("applied_at", "last_at")}
    return [_router_row(row, now) for _, row in sorted(newest.items())]


def _router_row(row: SourceProgress, now: datetime) -> RouterRow:
    state = row.router_state or {}
    return RouterRow(
        router=row.source,
        last_at=row.last_at,
        age_s=max(0.0, (now - row.last_at).total_seconds()),
        snapshot_version=state["snapshot_version"],
        snapshot_age_s=state["snapshot_age_s"],
        inflight=state["inflight"],
        index_blocks=state["index_blocks"],
        index_bytes=state["index_bytes"],
        stream_dropped=state.get("stream_dropped", 0),
        worker_states=state.get("worker_states", {}),
        worker_outstanding=state.get("worker_outstanding", {}),
    )


def ingest_lag_ms(buckets: Buckets, q: float) -> float | None:
    """Quantile of ingest lags out of `stream.lag_buckets` (or the difference of two readings)."""
    return quantile(buckets, q)


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


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None

"""Questions of hot spots: which prefixes, which workers, how unequal. Everything unknown is None."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from django.db.models import Count, F, Max, QuerySet, Sum, Value
from django.db.models.functions import StrIndex, Substr

from controlplane.telemetry.hotspot_figures import (
    OTHERS,
    Concentration,
    HotSpot,
    ImbalanceSeries,
    MatchPoint,
    PrefixSeries,
    WorkerShare,
    concentration,
)
from controlplane.telemetry.merge import HEAT, Values, merge_into
from controlplane.telemetry.models import DecisionRecord, PrefixHeatRollup, WorkerRollup
from controlplane.telemetry.rollup_rows import segments_q
from controlplane.telemetry.windows import Grid, Scope, Segment, aligned_pair, cover, grid_of, series_head

PREFIXES_MAX = 2000
"""Prefixes that a concentration is made of: beyond them one has a few requests of many thousands."""
SAMPLES_MAX = 150
"""Newest sampled decisions of a scatter: each names every worker of its pool."""
WORKERS_DRAWN = 6
_COMPUTED = F("prefix_query_tokens") - F("prefix_hit_tokens")
"""Prompt tokens that a worker looked up and did not find: what it had to compute."""
_KEY = ("namespace", "pool", "prefix")
Key = tuple[str, str, str]
"""Namespace, pool, prefix."""


def prefix_requests(scope: Scope, *, now: datetime) -> list[tuple[Key, int]]:
    """((namespace, pool, prefix), requests) of at most PREFIXES_MAX prefixes, busiest first. One query."""
    rows = _heat_rows(scope, now).values(*_KEY).annotate(sum=Sum("requests")).filter(sum__gt=0)
    found = rows.order_by("-sum", *_KEY)[:PREFIXES_MAX]
    return [((row["namespace"], row["pool"], row["prefix"]), row["sum"]) for row in found]


def hot_spots(scope: Scope, *, now: datetime, limit: int = 50) -> list[HotSpot]:
    """The most requested prefixes, busiest first. Honours tenant, namespace and pool. Two queries."""
    return spots_among(scope, now=now, keys=tuple(key for key, _ in prefix_requests(scope, now=now)[:limit]))


def spots_among(scope: Scope, *, now: datetime, keys: tuple[Key, ...]) -> list[HotSpot]:
    """Those of the prefixes that had requests, in their order. One query."""
    busiest = list(keys)
    if not busiest:
        return []
    rows = _heat_rows(scope, now).filter(prefix__in={prefix for _, _, prefix in busiest})
    totals = _totals(rows.order_by("start"))
    return [_hot_spot(key, totals[key]) for key in busiest if key in totals]


def spots_of(scope: Scope, pool: str, prefix: str, *, now: datetime) -> list[HotSpot]:
    """One prefix, by namespace: several where they share a cache domain. Busiest first."""
    rows = _heat_rows(scope, now).filter(pool=pool, prefix=prefix).order_by("start")
    spots = [_hot_spot(key, values) for key, values in _totals(rows).items() if values["requests"]]
    return sorted(spots, key=lambda spot: -spot.requests)


def worker_load(scope: Scope, *, now: datetime) -> Concentration:
    """Prompt tokens that each worker computed; pool and worker of the scope count, its tenants do not."""
    span, _ = aligned_pair(scope, now=now)
    rows = _worker_rows(scope).filter(segments_q(cover(span, now=now)))
    sums = rows.order_by().values("worker").annotate(tokens=Sum(_COMPUTED))
    return concentration([(row["worker"], max(0.0, float(row["tokens"] or 0))) for row in sums])


def imbalance(scope: Scope, *, now: datetime) -> ImbalanceSeries:
    """Where a point spans several buckets it is the worst of them. One query."""
    grid = grid_of(scope, now=now)
    ratio: list[float | None] = [None] * grid.count
    tokens: list[float | None] = [None] * grid.count
    for row in _pool_loads(scope, grid):
        index = grid.index_of(row["start"])
        if index is None:
            continue
        total = float(row["total"] or 0)
        tokens[index] = (tokens[index] or 0.0) + total / grid.step_s
        if total > 0 and row["workers"] > 1:
            ratio[index] = max(ratio[index] or 0.0, float(row["most"]) * row["workers"] / total)
    return ImbalanceSeries(**series_head(grid, now), ratio=ratio, tokens_per_s=tokens)


def _pool_loads(scope: Scope, grid: Grid) -> Iterable[Mapping[str, Any]]:
    """The busiest worker's tokens, all of them and the workers, for each pool and bucket."""
    rows = _worker_rows(scope).filter(segments_q([Segment(grid.width_s, grid.first, grid.end)]))
    rows = rows.annotate(pool=Substr("worker", 1, StrIndex("worker", Value("/")) - 1))
    by_pool = rows.order_by().values("start", "pool")
    return by_pool.annotate(most=Max(_COMPUTED), total=Sum(_COMPUTED), workers=Count("worker"))


def queue_against_match(scope: Scope, *, now: datetime, prefix: str = "") -> list[MatchPoint]:
    """Of the newest sampled decisions with candidates. `prefix`: of this one alone. One query."""
    found = DecisionRecord.objects.filter(at__gte=scope.from_, at__lt=scope.to).exclude(reason="retry")
    for name in ("tenant", "namespace", "pool", "worker"):
        if value := getattr(scope, name):
            found = found.filter(**{name: value})
    if prefix:
        found = found.filter(detail__prefix=prefix)
    rows = found.order_by("-at").values_list("request_id", "at", "worker", "detail")[:SAMPLES_MAX]
    points = (_match_point(*row) for row in rows)
    return [point for point in points if point is not None]


def _match_point(request_id: str, at: datetime, worker: str, detail: dict[str, Any]) -> MatchPoint | None:
    candidates = [each for each in detail.get("candidates", []) if not each.get("excluded")]
    chosen = next((each for each in candidates if each.get("worker") == worker), None)
    if chosen is None:
        return None
    best = max(candidates, key=lambda each: (each.get("matched_tokens", 0), -each.get("queue_ms", 0.0)))
    return MatchPoint(
        request_id=request_id,
        at=at,
        worker=worker,
        matched_tokens=chosen.get("matched_tokens", 0),
        queue_ms=chosen.get("queue_ms", 0.0),
        best_worker=best["worker"],
        best_matched_tokens=best.get("matched_tokens", 0),
        best_queue_ms=best.get("queue_ms", 0.0),
    )


def prefix_series(scope: Scope, *, now: datetime, pool: str, prefix: str) -> PrefixSeries:
    """One query."""
    grid = grid_of(scope, now=now)
    rows = _of_scope(scope).filter(segments_q([Segment(grid.width_s, grid.first, grid.end)]), pool=pool, prefix=prefix)
    sums: list[Values | None] = [None] * grid.count
    for row in rows.values("start", *HEAT.sums, *HEAT.dicts, *HEAT.maxes):
        index = grid.index_of(row["start"])
        if index is not None:
            values = sums[index] or {}
            merge_into(HEAT, values, row)
            sums[index] = values
    return PrefixSeries(
        **series_head(grid, now),
        by_worker=_rates_by_worker(sums, grid.step_s),
        hit_share=[None if row is None else _ratio(row["hit_tokens"], row["prompt_tokens"]) for row in sums],
        queue_ms=[None if row is None else _ratio(row["queue_ms"], row["requests"]) for row in sums],
        homes=[None if row is None else float(row["homes"]) or None for row in sums],
    )


def _rates_by_worker(sums: list[Values | None], step_s: int) -> dict[str, list[float | None]]:
    totals: Counter[str] = Counter()
    for row in sums:
        totals.update((row or {}).get("by_worker", {}))
    drawn = sorted(worker for worker, _ in totals.most_common(WORKERS_DRAWN))
    lines: dict[str, list[float | None]] = {}
    for name in [*drawn, *([OTHERS] if len(totals) > len(drawn) else [])]:
        wanted = {name} if name != OTHERS else totals.keys() - set(drawn)
        lines[name] = [
            None if row is None else sum(row.get("by_worker", {}).get(each, 0) for each in wanted) / step_s
            for row in sums
        ]
    return lines


def _heat_rows(scope: Scope, now: datetime) -> QuerySet[PrefixHeatRollup]:
    span, _ = aligned_pair(scope, now=now)
    return _of_scope(scope).filter(segments_q(cover(span, now=now))).order_by()


def _of_scope(scope: Scope) -> QuerySet[PrefixHeatRollup]:
    rows = PrefixHeatRollup.objects.all()
    if scope.tenant:
        rows = rows.filter(namespace__startswith=f"{scope.tenant}/")
    for name in ("namespace", "pool"):
        if getattr(scope, name):
            rows = rows.filter(**{name: getattr(scope, name)})
    return rows


def _worker_rows(scope: Scope) -> QuerySet[WorkerRollup]:
    if scope.worker:
        return WorkerRollup.objects.filter(worker=scope.worker)
    if scope.pool:
        return WorkerRollup.objects.filter(worker__startswith=f"{scope.pool}/")
    return WorkerRollup.objects.all()


def _totals(rows: QuerySet[PrefixHeatRollup]) -> dict[tuple[str, str, str], Values]:
    totals: dict[tuple[str, str, str], Values] = {}
    for row in rows.values(*_KEY, *HEAT.values):
        key = (row["namespace"], row["pool"], row["prefix"])
        merge_into(HEAT, totals.setdefault(key, {}), row)
    return totals


def _hot_spot(key: tuple[str, str, str], values: Values) -> HotSpot:
    namespace, pool, prefix = key
    requests = values["requests"]
    return HotSpot(
        prefix=prefix,
        namespace=namespace,
        pool=pool,
        requests=requests,
        tokens=values["head_tokens"] or values["tokens"],
        workers=_shares(values.get("by_worker", {}), set(values["holders"]), requests),
        hit_share=_ratio(values["hit_tokens"], values["prompt_tokens"]),
        # Rows of a router that tells no prompt tokens tell no queue either.
        queue_ms=_ratio(values["queue_ms"], requests) if values["prompt_tokens"] else None,
        spill_share=_ratio(values["spills"], requests) if values["prompt_tokens"] else None,
        placed_share=_ratio(values["placed"], requests),
        load=values["load"] or None,
        homes=values["homes"] or None,
    )


def _shares(by_worker: Mapping[str, int], holders: set[str], requests: int) -> list[WorkerShare]:
    shares = [
        WorkerShare(worker, count, count / requests if requests else 0.0, worker in holders)
        for worker, count in by_worker.items()
    ]
    idle = [WorkerShare(worker, 0, 0.0, True) for worker in holders - by_worker.keys()]
    return sorted(shares, key=lambda each: (-each.requests, each.worker)) + sorted(idle, key=lambda each: each.worker)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None

"""Questions of eviction churn, from KV events and polls. Everything unknown is None.

Value lost: blocks that came back within RESTORE_WINDOW_S × tokens a block ÷ the prefill rate that routers have learnt
(the pool's stated rate where none is heard): GPU time spent to compute again what had been there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db.models import Count, F, Max, Q, Sum

from controlplane.fleet.selectors import WorkerRow
from controlplane.telemetry.bucket_reading import Place, sums_by
from controlplane.telemetry.calibration import learnt_rates
from controlplane.telemetry.eviction_figures import (
    Evictions,
    KvUseLines,
    NamespaceLoss,
    Price,
    WorkerChurn,
    pair_of,
)
from controlplane.telemetry.merge import EVICTIONS, Values, merge_into
from controlplane.telemetry.models import EvictionRollup, WorkerRollup
from controlplane.telemetry.rollup_rows import segments_q
from controlplane.telemetry.windows import Scope, aligned_pair, cover, grid_of, series_head
from controlplane.telemetry.worker_sums import rows_of_workers
from router.contract.snapshot import Watermark

Prices = Mapping[str, Price]
"""By pool."""


def prices(*, now: datetime, workers: Sequence[WorkerRow]) -> dict[str, Price]:
    """What a block costs at present in each pool that has workers. One query."""
    learnt = learnt_rates(now=now)
    found = {}
    for pool in sorted({row.pool for row in workers}):
        own = [row for row in workers if row.pool == pool]
        rates = [learnt[row.worker_id].tokens_per_s for row in own if row.worker_id in learnt]
        sizes = [size for row in own if isinstance(size := row.facts.get("block_size"), int)]
        rate = sum(rates) / len(rates) if rates else own[0].prefill_tokens_per_s
        found[pool] = Price(sizes[0] if sizes else None, rate)
    return found


def evictions(scope: Scope, *, now: datetime, prices: Prices) -> Evictions:
    """Honours the scope's pool alone: of single workers no such table is kept. One query."""
    span, _ = aligned_pair(scope, now=now)
    rows = EvictionRollup.objects.filter(segments_q(cover(span, now=now)))
    if scope.pool or scope.worker:
        rows = rows.filter(pool=scope.pool or scope.worker.partition("/")[0])
    by_pool = {row["pool"]: row for row in sums_by(rows, ("pool",), EVICTIONS)}
    total: Values = {}
    for values in by_pool.values():
        merge_into(EVICTIONS, total, values)
    return Evictions(
        heard_s=total.get("seconds", 0),
        evicted={pair_of(label): count for label, count in total.get("evicted", {}).items()},
        restored_of=total.get("restored_of", {}),
        lifetime=_buckets(total.get("lifetime", {})),
        restore_gap=_buckets(total.get("restore_gap", {})),
        losses=_losses(by_pool, prices),
    )


def worker_churn(
    scope: Scope, *, now: datetime, prices: Prices, marks: Mapping[str, Watermark], workers: Sequence[WorkerRow]
) -> list[WorkerChurn]:
    """Each worker that the range knows, most restored blocks first. One query."""
    grid = grid_of(scope, now=now)
    rows = rows_of_workers(scope).filter(segments_q([grid.segment])).order_by().values("worker")
    sums: dict[str, Values] = {row["worker"]: dict(row) for row in rows.annotate(**_aggregates(marks))}
    present = {row.worker_id: row for row in workers}
    found = [_worker_churn(name, values, prices, present.get(name)) for name, values in sums.items()]
    return sorted(found, key=lambda row: (-(row.restored or 0), -(row.removed or 0), row.worker))


def kv_use_lines(scope: Scope, *, now: datetime, workers: tuple[str, ...]) -> KvUseLines:
    """One query."""
    grid = grid_of(scope, now=now)
    rows = WorkerRollup.objects.filter(segments_q([grid.segment]), worker__in=workers, kv_use_samples__gt=0)
    points = rows.order_by().annotate(point=Place(grid)).values_list("worker", "point")
    lines: dict[str, list[float | None]] = {worker: [None] * grid.count for worker in workers}
    for worker, point, used, samples in points.annotate(used=Sum("kv_use_sum"), samples=Sum("kv_use_samples")):
        lines[worker][point] = used / samples
    return KvUseLines(**series_head(grid, now), by_worker=lines)


def _aggregates(marks: Mapping[str, Watermark]) -> dict[str, Any]:
    heard, polled = Q(kv_samples__gt=0), Q(kv_use_samples__gt=0)
    above_high, above_low = _above(marks, "high"), _above(marks, "low")
    return {
        "stored": Sum("stored_blocks", filter=heard),
        "removed": Sum("removed_blocks", filter=heard),
        "restored": Sum("restored_blocks", filter=heard),
        "gaps": Sum("event_gaps", filter=heard),
        "used": Sum("kv_use_sum"),
        "samples": Sum("kv_use_samples"),
        "most": Max("kv_use_max", filter=polled),
        "buckets": Count("id", filter=polled),
        "high": Count("id", filter=polled & above_high),
        "low": Count("id", filter=polled & above_low),
    }


def _above(marks: Mapping[str, Watermark], which: str) -> Q:
    """Buckets whose mean KV use is at or above that watermark of their worker's pool."""
    condition = Q(pk__in=[])
    for pool, mark in marks.items():
        condition |= Q(worker__startswith=f"{pool}/", kv_use_sum__gte=F("kv_use_samples") * getattr(mark, which))
    return condition


def _worker_churn(name: str, values: Values, prices: Prices, present: WorkerRow | None) -> WorkerChurn:
    removed, restored, buckets = values["removed"], values["restored"], values["buckets"]
    price = prices.get(name.partition("/")[0])
    return WorkerChurn(
        worker=name,
        stored=values["stored"],
        removed=removed,
        restored=restored,
        restored_share=restored / removed if removed else None,
        lost_gpu_s=None if restored is None or price is None else price.gpu_s(restored),
        kv_use_mean=values["used"] / values["samples"] if values["samples"] else None,
        kv_use_max=values["most"],
        high_share=values["high"] / buckets if buckets else None,
        between_share=(values["low"] - values["high"]) / buckets if buckets else None,
        resident_share=present.resident_share if present else None,
        gaps=values["gaps"],
    )


def _losses(by_pool: Mapping[str, Values], prices: Prices) -> list[NamespaceLoss]:
    evicted: Counter[str] = Counter()
    others: Counter[str] = Counter()
    restored: Counter[str] = Counter()
    tokens: dict[str, float | None] = {}
    gpu_s: dict[str, float | None] = {}
    for pool, values in by_pool.items():
        for label, blocks in values.get("evicted", {}).items():
            evictor, victim = pair_of(label)
            evicted[victim] += blocks
            others[victim] += blocks if evictor != victim else 0
        price = prices.get(pool, Price(None, None))
        for namespace, blocks in values.get("restored_of", {}).items():
            restored[namespace] += blocks
            _add(tokens, namespace, price.tokens(blocks))
            _add(gpu_s, namespace, price.gpu_s(blocks))
    losses = [
        NamespaceLoss(name, evicted[name], others[name], restored[name], tokens.get(name, 0.0), gpu_s.get(name, 0.0))
        for name in evicted.keys() | restored.keys()
    ]
    return sorted(losses, key=lambda loss: (-loss.restored_blocks, -loss.evicted_blocks, loss.namespace))


def _add(sums: dict[str, float | None], name: str, value: float | None) -> None:
    """A sum with an unknown part is unknown."""
    before = sums.get(name, 0.0)
    sums[name] = None if before is None or value is None else before + value


def _buckets(stored: Mapping[str, int]) -> dict[int, int]:
    """JSON objects have text keys."""
    return {int(index): count for index, count in stored.items()}

"""What is known of a prefix and of its pool, as the preview of spreading it asks."""

from __future__ import annotations

from datetime import datetime

from controlplane.fleet.models import Worker, WorkerStatus
from controlplane.fleet.selectors import fresh_kv, health_of
from controlplane.telemetry.hotspot_figures import HotSpot
from controlplane.telemetry.models import DecisionRecord
from controlplane.telemetry.spread import Known, Room
from controlplane.telemetry.windows import Scope

SAMPLES_MAX = 50
"""Newest sampled decisions from which the workers' queues and rates are read."""


def known_of(spot: HotSpot, scope: Scope, *, now: datetime) -> Known | None:
    """None when the pool has no worker. Two queries."""
    workers = list(Worker.objects.filter(pool__slug=spot.pool).select_related("pool", "status"))
    if not workers:
        return None
    pool = workers[0].pool
    ready = [row for row in workers if row.state == Worker.State.READY and health_of(_status(row), now) != "down"]
    queue_ms, rate = _queue_and_rate(scope, spot.pool)
    sizes = [size for row in ready if isinstance(size := row.facts.get("block_size"), int)]
    return Known(
        head_tokens=spot.tokens,
        block_size=sizes[0] if sizes else pool.block_size,
        requests_per_s=spot.requests / max(1.0, (min(scope.to, now) - scope.from_).total_seconds()),
        effective_workers=spot.effective_workers,
        queue_ms=spot.queue_ms,
        pool_queue_ms=queue_ms,
        prefill_tokens_per_s=rate or pool.prefill_tokens_per_s,
        kv_bytes_per_token=pool.kv_bytes_per_token,
        rooms=[Room(row.worker_id, _free_blocks(row, now), row.worker_id in spot.holders) for row in ready],
    )


def _status(row: Worker) -> WorkerStatus:
    return getattr(row, "status", None) or WorkerStatus()


def _free_blocks(row: Worker, now: datetime) -> int | None:
    resident, capacity = fresh_kv(_status(row), now).get("resident_blocks"), row.facts.get("kv_blocks")
    return max(0, capacity - resident) if isinstance(resident, int) and isinstance(capacity, int) else None


def _queue_and_rate(scope: Scope, pool: str) -> tuple[float | None, float | None]:
    """Means over the workers that sampled decisions could have chosen: predicted queue in ms, prefill tokens/s."""
    found = DecisionRecord.objects.filter(at__gte=scope.from_, at__lt=scope.to, pool=pool).order_by("-at")
    queues, rates = [], []
    for detail in found.values_list("detail", flat=True)[:SAMPLES_MAX]:
        for seen in detail.get("candidates", []):
            if not seen.get("excluded"):
                queues.append(seen.get("queue_ms", 0.0))
                rates += [seen["prefill_tokens_per_s"]] if seen.get("prefill_tokens_per_s") else []
    return _mean(queues), _mean(rates)


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None

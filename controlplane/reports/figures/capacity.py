"""How full the caches were: KV use, time above the watermarks, occupancy, and what eviction threw away.

Workers know no tenants, so a tenant's report has none of this.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any

from django.db.models import Avg, Case, F, Max, Q, QuerySet, Sum, Value, When
from django.db.models.fields import FloatField

from controlplane.fleet.models import Worker, WorkerPool
from controlplane.policies.models import WatermarkPolicy
from controlplane.reports.figures.span import HOUR_S, Subject
from controlplane.telemetry.models import WorkerRollup
from controlplane.telemetry.rollup_rows import segments_q
from controlplane.telemetry.windows import RETENTION_S, Segment, ceil_to
from router.contract.snapshot import Watermark

Figures = dict[str, Any]
MINUTE_S = 60
Marks = dict[str, tuple[float, float]]
"""Pool → (low, high)."""


def watermarks(subject: Subject) -> Marks:
    """In force at this moment, the pool's own or else the global one."""
    rows = {row.scope_id: (row.low, row.high) for row in WatermarkPolicy.objects.select_related("pool", "namespace")}
    usual = rows.get("global", (Watermark().low, Watermark().high))
    pools = WorkerPool.objects.filter(**({"slug": subject.pool} if subject.pool else {}))
    return {slug: rows.get(f"pool:{slug}", usual) for slug in pools.values_list("slug", flat=True)}


def by_worker(subject: Subject, marks: Marks, *, prefill: Mapping[str, float]) -> list[Figures]:
    """One row a worker. Time above a watermark: share of the time whose mean KV use was at or above it, minute by
    minute as far back as minutes are kept (7 days), hour by hour before.

    `prefill`: pool → tokens/s, to turn what was computed again into GPU-seconds.
    """
    use = {row["worker"]: row for row in _use(subject, marks)}
    churn = {row["worker"]: row for row in _churn(subject)}
    facts = {row.worker_id: row for row in Worker.objects.select_related("pool")}
    names = sorted(use.keys() | churn.keys() | {n for n in facts if subject.pool in ("", facts[n].pool.slug)})
    return [_worker(name, use.get(name), churn.get(name), facts.get(name), marks, prefill) for name in names]


def by_pool(workers: list[Figures], marks: Marks) -> list[Figures]:
    """Means over the pool's workers that reported; sums of blocks and losses."""
    grouped: dict[str, list[Figures]] = defaultdict(list)
    for row in workers:
        grouped[row["pool"]].append(row)
    return [_pool(pool, rows, marks) for pool, rows in sorted(grouped.items())]


def busiest_hours(subject: Subject) -> dict[str, dict[date, float]]:
    """Pool → day → mean KV use of its workers in the busiest hour of that day."""
    sums: dict[tuple[str, Any], tuple[float, float]] = {}
    rows = _rows(subject, [subject.hours]).filter(kv_use_samples__gt=0)
    for start, worker, use, samples in rows.values_list("start", "worker", "kv_use_sum", "kv_use_samples").iterator():
        key = (worker.partition("/")[0], start)
        before = sums.get(key, (0.0, 0.0))
        sums[key] = (before[0] + use, before[1] + samples)
    busiest: dict[str, dict[date, float]] = defaultdict(dict)
    for (pool, start), (total, count) in sums.items():
        day = subject.day_of(start)
        busiest[pool][day] = max(busiest[pool].get(day, 0.0), total / count)
    return busiest


def _rows(subject: Subject, segments: list[Segment]) -> QuerySet[WorkerRollup]:
    rows = WorkerRollup.objects.filter(segments_q(segments))
    return rows.filter(worker__startswith=f"{subject.pool}/") if subject.pool else rows


def _use(subject: Subject, marks: Marks) -> list[Any]:
    low, high = _bound(marks, 0), _bound(marks, 1)
    rows = _rows(subject, _finest(subject)).filter(kv_use_samples__gt=0).annotate(low=low, high=high)
    above = {
        f"above_{name}_s": Sum("width_s", filter=Q(kv_use_sum__gte=F("kv_use_samples") * F(name)), default=0)
        for name in ("low", "high")
    }
    return list(
        rows.values("worker").annotate(
            use=Sum("kv_use_sum"), samples=Sum("kv_use_samples"), top=Max("kv_use_max"), known_s=Sum("width_s"), **above
        )
    )


def _churn(subject: Subject) -> list[Any]:
    fields = ("stored_blocks", "removed_blocks", "restored_blocks", "kv_samples", "preemptions")
    rows = _rows(subject, [subject.hours]).values("worker")
    return list(rows.annotate(**{name: Sum(name) for name in fields}, resident=Avg("resident_blocks")))


def _finest(subject: Subject) -> list[Segment]:
    """Minutes where they are kept for the whole hour, hours before."""
    kept_from = ceil_to(subject.to - timedelta(seconds=RETENTION_S[MINUTE_S] - HOUR_S), HOUR_S)
    hours = subject.hours
    if kept_from <= hours.from_:
        return [Segment(MINUTE_S, hours.from_, hours.to)]
    return [Segment(HOUR_S, hours.from_, kept_from), Segment(MINUTE_S, kept_from, hours.to)]


def _bound(marks: Marks, index: int) -> Case:
    usual = (Watermark().low, Watermark().high)[index]
    whens = [When(worker__startswith=f"{pool}/", then=Value(pair[index])) for pool, pair in marks.items()]
    return Case(*whens, default=Value(usual), output_field=FloatField())


def _worker(
    name: str,
    use: Figures | None,
    churn: Figures | None,
    row: Worker | None,
    marks: Marks,
    prefill: Mapping[str, float],
) -> Figures:
    pool = name.partition("/")[0]
    facts = row.facts if row else {}
    block = facts.get("block_size") or (row.pool.block_size if row else None)
    reported = churn is not None and bool(churn["kv_samples"])
    restored = churn["restored_blocks"] if churn is not None and reported else None
    lost_tokens = None if restored is None or not block else restored * block
    rate = prefill.get(pool)
    return {
        "worker": name,
        "pool": pool,
        "kv_use_mean": use["use"] / use["samples"] if use else None,
        "kv_use_max": use["top"] if use else None,
        "above_low_share": use["above_low_s"] / use["known_s"] if use else None,
        "above_high_share": use["above_high_s"] / use["known_s"] if use else None,
        "known_s": use["known_s"] if use else 0,
        "occupancy": _ratio(churn["resident"] if churn else None, facts.get("kv_blocks")),
        "stored_blocks": churn["stored_blocks"] if churn is not None and reported else None,
        "removed_blocks": churn["removed_blocks"] if churn is not None and reported else None,
        "restored_blocks": restored,
        "lost_tokens": lost_tokens,
        "lost_gpu_s": None if lost_tokens is None or not rate else lost_tokens / rate,
        "preemptions": churn["preemptions"] if churn else None,
    }


def _pool(pool: str, rows: list[Figures], marks: Marks) -> Figures:
    low, high = marks.get(pool, (Watermark().low, Watermark().high))
    known = sum(row["known_s"] for row in rows)

    def weighted(name: str) -> float | None:
        return sum((row[name] or 0) * row["known_s"] for row in rows) / known if known else None

    def summed(name: str) -> float | None:
        values = [row[name] for row in rows if row[name] is not None]
        return sum(values) if values else None

    return {
        "pool": pool,
        "workers": len(rows),
        "low": low,
        "high": high,
        "kv_use_mean": weighted("kv_use_mean"),
        "kv_use_max": max((row["kv_use_max"] for row in rows if row["kv_use_max"] is not None), default=None),
        "above_low_share": weighted("above_low_share"),
        "above_high_share": weighted("above_high_share"),
        "removed_blocks": summed("removed_blocks"),
        "restored_blocks": summed("restored_blocks"),
        "lost_tokens": summed("lost_tokens"),
        "lost_gpu_s": summed("lost_gpu_s"),
    }


def _ratio(part: float | None, whole: float | None) -> float | None:
    return float(part) / whole if part is not None and whole else None

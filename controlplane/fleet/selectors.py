"""Workers and pools as the operator sees them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.utils import timezone

from controlplane.fleet.models import Finding, Worker, WorkerStatus
from router.contract.live import LIVE_STALE_AFTER_S

FAILURES_BEFORE_DOWN = 3
KV_STALE_AFTER_S = 15.0
"""The subscriber speaks every second; ingestion may lag some."""


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One worker: what is wanted, what it last said, and how old that is. None = unknown."""

    pk: int
    worker_id: str
    pool: str
    slug: str
    url: str
    state: str
    """Wanted: ready, drain or maintenance."""
    health: str
    """`ok`, `down` (polls fail), `stale` (no poll lately) or `unknown` (never polled)."""
    revision: int
    running: float | None
    waiting: float | None
    waiting_by_reason: dict[str, float]
    kv_use: float | None
    """Blocks held by running requests ÷ all, 0…1."""
    resident_share: float | None
    """Blocks in the cache (KV events) ÷ capacity, 0…1."""
    resident_blocks: int | None
    capacity_blocks: int | None
    evictions_per_s: float | None
    """Blocks removed in the last reported second."""
    event_state: str
    """`live`, `rebuilding`, `degraded`, `silent`, `down`, `off` (no endpoint) or `unknown`."""
    poll_age_s: float | None
    """Seconds since the last good poll: the age of every figure from the metrics page."""
    kv_age_s: float | None
    scrape_ms: float | None
    error: str
    gpu: dict[str, float]
    """utilisation (0…1), memory_used_mib, memory_total_mib, power_w; a missing key is unknown."""
    findings: list[Finding]
    facts: dict[str, object]
    prefill_tokens_per_s: float | None
    """The pool's starting estimate; routers learn the real rate."""


def workers_table(
    *, pool: str = "", now: datetime | None = None, findings: Sequence[Finding] | None = None
) -> list[WorkerRow]:
    """Every worker, by pool and slug. Two queries; one where all open `findings` are known already."""
    workers = Worker.objects.select_related("pool", "status").order_by("pool__slug", "slug")
    if pool:
        workers = workers.filter(pool__slug=pool)
    return _rows(workers, now or timezone.now(), findings)


def worker_row(worker_id: str, *, now: datetime | None = None) -> WorkerRow | None:
    """One row of the table, or None when there is no such worker."""
    pool, _, slug = worker_id.partition("/")
    workers = Worker.objects.select_related("pool", "status").filter(pool__slug=pool, slug=slug)
    return next(iter(_rows(workers, now or timezone.now())), None)


def open_findings(*, subject: str = "", limit: int = 200) -> list[Finding]:
    """Open findings, newest first."""
    findings = Finding.objects.filter(resolved_at=None).order_by("-last_seen")
    return list((findings.filter(subject=subject) if subject else findings)[:limit])


def stale_after_s() -> float:
    """Age at which figures from polls no longer count as present."""
    return max(LIVE_STALE_AFTER_S, 3 * settings.CONFIG.poll_interval_s)


def _rows(workers: Iterable[Worker], now: datetime, known: Sequence[Finding] | None = None) -> list[WorkerRow]:
    listed = list(workers)
    if known is None:
        names = [worker.worker_id for worker in listed]
        known = list(Finding.objects.filter(resolved_at=None, subject__in=names))
    findings: dict[str, list[Finding]] = {}
    for finding in known:
        findings.setdefault(finding.subject, []).append(finding)
    return [_row(worker, findings.get(worker.worker_id, []), now) for worker in listed]


def _row(worker: Worker, findings: list[Finding], now: datetime) -> WorkerRow:
    status = getattr(worker, "status", None) or WorkerStatus()
    reading, kv = status.reading, fresh_kv(status, now)
    resident, capacity = kv.get("resident_blocks"), worker.facts.get("kv_blocks")
    return WorkerRow(
        pk=worker.pk,
        worker_id=worker.worker_id,
        pool=worker.pool.slug,
        slug=worker.slug,
        url=worker.url,
        state=worker.state,
        health=health_of(status, now),
        revision=worker.revision,
        running=reading.get("running"),
        waiting=reading.get("waiting"),
        waiting_by_reason=reading.get("waiting_by_reason", {}),
        kv_use=reading.get("kv_use"),
        resident_share=None if resident is None or not capacity else min(1.0, resident / capacity),
        resident_blocks=resident,
        capacity_blocks=capacity,
        evictions_per_s=kv.get("removed_blocks"),
        event_state=_event_state(worker, kv),
        poll_age_s=_age_s(status.ok_at, now),
        kv_age_s=_age_s(status.kv_at, now),
        scrape_ms=status.scrape_ms,
        error=status.error,
        gpu=reading.get("gpu", {}),
        findings=findings,
        facts=worker.facts,
        prefill_tokens_per_s=worker.pool.prefill_tokens_per_s,
    )


def health_of(status: WorkerStatus, now: datetime) -> str:
    """`unknown`, `down`, `stale` or `ok`, from the polls alone."""
    if status.polled_at is None:
        return "unknown"
    if status.consecutive_failures >= FAILURES_BEFORE_DOWN:
        return "down"
    age_s = _age_s(status.ok_at, now)
    return "stale" if age_s is None or age_s > stale_after_s() else "ok"


def fresh_kv(status: WorkerStatus, now: datetime) -> dict[str, Any]:
    """The subscriber's last word, or nothing when it is too old to be true still."""
    age_s = _age_s(status.kv_at, now)
    return status.kv if age_s is not None and age_s <= KV_STALE_AFTER_S else {}


def _event_state(worker: Worker, kv: dict[str, Any]) -> str:
    if not worker.kv_events_endpoint:
        return "off"
    return str(kv.get("state", "unknown"))


def _age_s(at: datetime | None, now: datetime) -> float | None:
    return None if at is None else max(0.0, (now - at).total_seconds())

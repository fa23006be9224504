"""Workers and pools as the operator sees them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from controlplane.fleet.models import Finding


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


def workers_table(*, pool: str = "", now: datetime | None = None) -> list[WorkerRow]:
    """Every worker, by pool and slug. Three queries."""
    raise NotImplementedError


def worker_row(worker_id: str, *, now: datetime | None = None) -> WorkerRow | None:
    """One row of the table, or None when there is no such worker."""
    raise NotImplementedError


def open_findings(*, subject: str = "", limit: int = 200) -> list[Finding]:
    """Open findings, newest first."""
    raise NotImplementedError

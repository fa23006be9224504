"""The newest word of the KV-event subscriber about each worker: status fields and findings."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from controlplane.fleet.findings import Observation, observe, resolve
from controlplane.fleet.models import Finding, Worker, WorkerStatus
from router.contract.telemetry import KvRow

STATE_FINDINGS = {
    "degraded": (
        "kv_events_degraded",
        "Events were lost beyond replay: occupancy is unknown until the cache is cleared or the worker restarts.",
    ),
    "silent": ("kv_events_silent", "Events are configured, but none arrive while the worker computes prompts."),
    "down": ("kv_events_down", "The worker's event endpoint cannot be reached."),
}


def store_kv_status(rows: Sequence[tuple[float, KvRow]], *, now: datetime) -> None:
    """`rows`: (second, row) in any order; only the newest of each worker decides. Unknown workers are left out."""
    newest: dict[str, tuple[float, KvRow]] = {}
    for at_s, row in rows:
        if row.worker not in newest or at_s >= newest[row.worker][0]:
            newest[row.worker] = (at_s, row)
    if not newest:
        return
    workers = {worker.worker_id: worker for worker in Worker.objects.select_related("pool", "status")}
    present = {name: word for name, word in newest.items() if name in workers}
    _store(present, workers)
    _note(present, {row.worker for _, row in rows if row.gaps and row.worker in workers}, now)


def _store(newest: dict[str, tuple[float, KvRow]], workers: dict[str, Worker]) -> None:
    statuses = []
    for name, (at_s, row) in newest.items():
        at = datetime.fromtimestamp(at_s, UTC)
        status = getattr(workers[name], "status", None)
        if status is not None and status.kv_at is not None and status.kv_at > at:
            continue
        statuses.append(WorkerStatus(worker_id=workers[name].pk, kv_at=at, kv=_word(row)))
    WorkerStatus.objects.bulk_create(
        statuses, update_conflicts=True, unique_fields=["worker"], update_fields=["kv_at", "kv"]
    )


def _word(row: KvRow) -> dict[str, object]:
    return {
        "state": row.state,
        "resident_blocks": row.resident_blocks,
        "removed_blocks": row.removed_blocks,
        "gaps": row.gaps,
        "lost_messages": row.lost_messages,
    }


def _note(newest: dict[str, tuple[float, KvRow]], with_gaps: set[str], now: datetime) -> None:
    found = [
        Observation("kv_event_gap", name, "KV events were lost and asked for again.", Finding.Severity.INFO)
        for name in sorted(with_gaps)
    ]
    for name, (_, row) in newest.items():
        if row.state in STATE_FINDINGS:
            kind, message = STATE_FINDINGS[row.state]
            found.append(Observation(kind, name, message))
    observe(found, at=now)
    for state, (kind, _) in STATE_FINDINGS.items():
        resolve([name for name, (_, row) in newest.items() if row.state != state], [kind], at=now)

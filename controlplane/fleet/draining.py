"""Workers that take nothing more: since when, by whom, and how far what ran there has ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from controlplane.audit.models import AuditEntry
from controlplane.fleet.models import Worker
from controlplane.fleet.selectors import WorkerRow

ACTIONS = tuple(f"worker.{state}" for state in (Worker.State.DRAIN, Worker.State.MAINTENANCE))
LOOKED_BACK = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Drained:
    row: WorkerRow
    since: datetime | None
    """When it was last asked to; None = not in the audit log."""
    actor: str
    reason: str


def leaving_rows(workers: Sequence[WorkerRow], *, now: datetime) -> list[Drained]:
    """Of these workers those that take nothing more, the newest first. One query, and none while all are ready."""
    out = [row for row in workers if row.state != Worker.State.READY]
    if not out:
        return []
    entries = AuditEntry.objects.filter(
        object_type="worker",
        object_id__in=[row.worker_id for row in out],
        action__in=ACTIONS,
        at__gte=now - LOOKED_BACK,
    ).order_by("id")
    asked = {entry.object_id: entry for entry in entries}
    found = [_drained(row, asked.get(row.worker_id)) for row in out]
    return sorted(found, key=lambda each: (-(each.since or now - LOOKED_BACK).timestamp(), each.row.worker_id))


def _drained(row: WorkerRow, entry: AuditEntry | None) -> Drained:
    if entry is None:
        return Drained(row, None, "", "")
    return Drained(row, entry.at, entry.actor, entry.reason)

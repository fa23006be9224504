"""Ticks of webhooks: look for events, attempt what is due, forget what is old, and check the audit log."""

from __future__ import annotations

from celery import shared_task
from django.utils import timezone

from controlplane.audit.verification import verify_and_note
from controlplane.fleet.findings import Observation, observe, resolve
from controlplane.fleet.models import Finding
from controlplane.webhooks import delivering
from controlplane.webhooks.events import AUDIT_BROKEN

AUDIT_LOG = "audit log"
"""Subject of that finding."""


@shared_task(expires=8)
def deliver_due() -> int:
    """Starts a task for each delivery that is due. How many."""
    delivering.collect()
    ids = delivering.due()
    for delivery_id in ids:
        deliver.apply_async(args=[delivery_id], expires=60)
    return len(ids)


@shared_task(soft_time_limit=30, time_limit=40)
def deliver(delivery_id: int) -> str:
    """One attempt. The delivery's state afterwards."""
    row = delivering.attempt(delivery_id)
    return str(row.state) if row else ""


@shared_task
def forget_deliveries() -> int:
    return delivering.forget_old()


@shared_task(soft_time_limit=270, time_limit=290)
def check_audit() -> int | None:
    """A broken audit log is a critical finding, and an event. Id of the first bad entry."""
    verdict = verify_and_note(by="system:schedule")
    now = timezone.now()
    if verdict.bad_id is None:
        resolve([AUDIT_LOG], [AUDIT_BROKEN], at=now)
    else:
        message = f"Entry {verdict.bad_id}: {verdict.fault}."
        observe([Observation(AUDIT_BROKEN, AUDIT_LOG, message, Finding.Severity.CRITICAL)], at=now)
    return verdict.bad_id

"""Beat's canary tick, hourly for each worker and at once after it has joined or restarted; TTFT audits asked for."""

from __future__ import annotations

import time

from celery import shared_task
from django.utils import timezone

from controlplane.deadletters.services import bounded
from controlplane.fleet.valkey import announce, single_flight
from controlplane.isolation import audit_services, canary_services
from controlplane.isolation.canary_run import TOTAL_S
from controlplane.isolation.canary_selectors import workers_due

PROBES = "probes"
CANARIES_S = 12.0
"""In which canaries of further workers are begun: with the last one's TOTAL_S it stays below the soft limit of 45 s."""


@shared_task
def canaries_due() -> int:
    """Asks the workers that are due, as far as this minute's share of time goes. How many.

    Probes of all kinds take turns: they hold at most one process of the pool, so that polls and ingestion go on.
    """
    for audit_pk in audit_services.audits_waiting(now=timezone.now()):
        ttft_audit.apply_async(args=[audit_pk], expires=50)
    with single_flight(PROBES, expires_s=CANARIES_S + TOTAL_S, without_valkey=False) as mine:
        asked = _ask_for(CANARIES_S) if mine else 0
    if asked:
        announce("isolation")
    return asked


def _ask_for(seconds: float) -> int:
    ends_at = time.monotonic() + seconds
    asked = 0
    for worker_pk in workers_due(now=timezone.now()):
        if time.monotonic() >= ends_at:
            break
        with bounded("canary", worker_pk) as allowed:
            if allowed:
                canary_services.run_for(worker_pk)
                asked += 1
    return asked


@shared_task(soft_time_limit=270, time_limit=290)
def ttft_audit(audit_id: int) -> str:
    """Times one worker for an audit that was asked for. Its verdict."""
    with single_flight(PROBES, expires_s=300, without_valkey=False) as mine:
        if not mine:
            return ""
        with bounded("ttft-audit", audit_id) as allowed:
            row = audit_services.perform_audit(audit_id) if allowed else None
    if row is None:
        return ""
    announce("isolation")
    return row.verdict


@shared_task
def forget_canaries() -> int:
    """Deletes results past their retention. How many."""
    return canary_services.forget_old(now=timezone.now())

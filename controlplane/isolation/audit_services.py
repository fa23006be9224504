"""Asking for a TTFT audit of a worker, running it, and the finding that follows (S9)."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from controlplane.audit.services import record
from controlplane.errors import Conflict, NotFound
from controlplane.fleet.findings import Observation, observe, resolve
from controlplane.fleet.guarding import proof_maker
from controlplane.fleet.models import Finding, Worker
from controlplane.isolation.canary import GREEN, RED
from controlplane.isolation.canary_run import Subject
from controlplane.isolation.models import TtftAudit
from controlplane.isolation.ttft_audit import Report, judge_times, run_audit

KIND = "ttft_leaks"
TOTAL_S = 240.0
LOST_AFTER = timedelta(seconds=600)
"""An audit that has not finished by then never will: its task is gone."""


def request_audit(worker_id: str, *, actor: str, request_id: str = "") -> TtftAudit:
    """A row to be run by the task. Raises NotFound, or Conflict while one is under way or the pool serves no model."""
    pool, _, slug = worker_id.partition("/")
    with transaction.atomic():
        workers = Worker.objects.select_related("pool").select_for_update(of=("self",))
        worker = workers.filter(pool__slug=pool, slug=slug).first()
        if worker is None:
            raise NotFound(f"There is no worker {worker_id!r}.")
        model = worker.pool.models.order_by("name").first()
        if model is None:
            raise Conflict("The worker's pool serves no model: there is nothing to ask.")
        now = timezone.now()
        if TtftAudit.objects.filter(worker=worker, finished_at=None, requested_at__gt=now - LOST_AFTER).exists():
            raise Conflict("An audit of this worker is under way: it takes a few minutes.")
        row = TtftAudit.objects.create(worker=worker, model=model.name, requested_by=actor[:200], requested_at=now)
        record(
            actor=actor, action="worker.ttft_audit", object_type="worker", object_id=worker_id, before=None,
            after={"audit": row.pk, "model": model.name}, affects_routing=False, request_id=request_id,
        )  # fmt: skip
    return row


def audits_waiting(*, now: datetime) -> list[int]:
    """Primary keys of audits without a verdict, also of those under way: their task holds a lock."""
    rows = TtftAudit.objects.filter(finished_at=None, requested_at__gt=now - LOST_AFTER).order_by("pk")
    return list(rows.values_list("pk", flat=True)[:10])


def perform_audit(audit_id: int) -> TtftAudit | None:
    """Times the worker (up to TOTAL_S) and stores the verdict. None for one that is gone or has finished."""
    row = TtftAudit.objects.select_related("worker__pool").filter(pk=audit_id, finished_at=None).first()
    if row is None:
        return None
    pool = row.worker.pool
    samples = run_audit(
        Subject(row.worker.url, row.model, pool.block_size, pool.guarded),
        networks=settings.CONFIG.worker_networks,
        total_s=TOTAL_S,
        api_key=settings.CONFIG.worker_api_key,
        proof_of=proof_maker(pool),
    )
    return store_report(row.pk, judge_times(samples), at=timezone.now())


@transaction.atomic
def store_report(audit_id: int, report: Report, *, at: datetime) -> TtftAudit | None:
    row = TtftAudit.objects.select_related("worker__pool").select_for_update(of=("self",)).filter(pk=audit_id).first()
    if row is None:
        return None
    row.finished_at = at
    row.verdict, row.reason = report.judgement.verdict, report.judgement.reason[:300]
    row.samples = report.samples
    if report.foreign is not None and report.own is not None:
        row.auc, row.auc_low, row.auc_high = report.foreign.value, report.foreign.low, report.foreign.high
        row.own_auc, row.own_auc_low = report.own.value, report.own.low
    row.own_ms, row.foreign_ms, row.unknown_ms = report.own_ms, report.foreign_ms, report.unknown_ms
    row.save()
    worker_id = row.worker.worker_id
    if row.verdict == RED:
        observe([Observation(KIND, worker_id, row.reason, Finding.Severity.CRITICAL)], at=at)
    elif row.verdict == GREEN:
        resolve([worker_id], [KIND], at=at)
    return row

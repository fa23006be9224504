"""Recording isolation violations from shipments, and acknowledging violations and findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

from django.db import models, transaction
from django.utils import timezone

from controlplane.audit.services import record
from controlplane.errors import Conflict, Invalid, NotFound
from controlplane.fleet.findings import Observation, observe, resolve
from controlplane.fleet.models import Finding, WorkerPool
from controlplane.isolation.models import IsolationViolation
from router.contract.telemetry import Shipment, Violation

Kind, Severity = IsolationViolation.Kind, IsolationViolation.Severity
FINDING_KIND = "isolation_violation"
FINDING_OF = {Kind.BOUND: FINDING_KIND, Kind.TTFT: "ttft_too_soon"}
ACKNOWLEDGEMENT_LENGTH_MAX = 500


def record_violations(shipments: Sequence[Shipment]) -> None:
    """Inside the ingest transaction. A request is recorded once, however often it is reported."""
    found = [violation for shipment in shipments for violation in shipment.violations]
    if not found:
        return
    block_sizes = dict(WorkerPool.objects.values_list("slug", "block_size"))
    rows = [_row(violation, block_sizes.get(violation.pool, 1)) for violation in found]
    IsolationViolation.objects.bulk_create(rows, ignore_conflicts=True)
    counts = Counter((violation.kind, violation.namespace) for violation in found)
    observe([_observation(kind, namespace, count) for (kind, namespace), count in counts.items()], at=timezone.now())


def _row(violation: Violation, block_size: int) -> IsolationViolation:
    """A cache gives whole blocks: less than one above the bound may be the bound's own roughness."""
    excess, is_bound = violation.cached_tokens - violation.bound_tokens, violation.kind != Kind.TTFT
    severity = Severity.CRITICAL if is_bound and excess >= block_size else Severity.WARNING
    return IsolationViolation(
        at=datetime.fromtimestamp(violation.at, UTC),
        request_id=violation.request_id,
        tenant=violation.tenant,
        namespace=violation.namespace,
        pool=violation.pool,
        worker=violation.worker,
        model=violation.model,
        prompt_tokens=violation.prompt_tokens,
        cached_tokens=violation.cached_tokens,
        bound_tokens=violation.bound_tokens,
        kind=Kind.BOUND if is_bound else Kind.TTFT,
        ttft_ms=None if is_bound else violation.ttft_ms,
        expected_ms=None if is_bound else violation.expected_ms,
        severity=severity,
        evidence=violation.evidence,
    )


def _observation(kind: str, namespace: str, count: int) -> Observation:
    if kind == Kind.TTFT:
        answers = "answer" if count == 1 else f"{count} answers"
        message = f"{answers.capitalize()} came too soon for the tokens that they call uncached."
        return Observation(FINDING_OF[Kind.TTFT], namespace, message, Finding.Severity.WARNING)
    answers = "answer had" if count == 1 else f"{count} answers had"
    message = f"{answers.capitalize()} more cached tokens than the namespace's own history allows."
    return Observation(FINDING_KIND, namespace, message, Finding.Severity.CRITICAL)


def acknowledge_violation(
    violation_id: int, *, actor: str, acknowledgement: str, request_id: str = ""
) -> IsolationViolation:
    """Notes who looked and what they concluded; the finding closes with the namespace's last open violation."""
    text = _words(acknowledgement)
    with transaction.atomic():
        violation = IsolationViolation.objects.select_for_update().filter(pk=violation_id).first()
        if violation is None:
            raise NotFound("There is no such violation.")
        _acknowledge(violation, actor=actor, text=text)
        record(
            actor=actor, action="violation.acknowledge", object_type="violation", object_id=violation.request_id,
            before={"acknowledged": False}, after={"acknowledged": True, "acknowledgement": text},
            affects_routing=False, reason=text, request_id=request_id,
        )  # fmt: skip
        same = IsolationViolation.objects.filter(namespace=violation.namespace, kind=violation.kind)
        if not same.filter(acknowledged_at=None).exists():
            resolve([violation.namespace], [FINDING_OF[Kind(violation.kind)]], at=timezone.now())
    return violation


def acknowledge_finding(finding_id: int, *, actor: str, acknowledgement: str, request_id: str = "") -> Finding:
    """Notes who looked and why it may wait. The finding stays open while what it tells of lasts."""
    text = _words(acknowledgement)
    with transaction.atomic():
        finding = Finding.objects.select_for_update().filter(pk=finding_id).first()
        if finding is None:
            raise NotFound("There is no such finding.")
        _acknowledge(finding, actor=actor, text=text)
        record(
            actor=actor, action="finding.acknowledge", object_type="finding", object_id=str(finding.pk),
            before={"acknowledged": False},
            after={"acknowledged": True, "kind": finding.kind, "subject": finding.subject, "acknowledgement": text},
            affects_routing=False, reason=text, request_id=request_id,
        )  # fmt: skip
    return finding


def _words(acknowledgement: str) -> str:
    text = acknowledgement.strip()
    if not text or len(text) > ACKNOWLEDGEMENT_LENGTH_MAX:
        raise Invalid.field("acknowledgement", f"Say what was found, in 1–{ACKNOWLEDGEMENT_LENGTH_MAX} characters.")
    return text


def _acknowledge(row: IsolationViolation | Finding, *, actor: str, text: str) -> None:
    if row.acknowledged_at is not None:
        raise Conflict(f"It was acknowledged by {row.acknowledged_by} already.")
    row.acknowledged_at = timezone.now()
    row.acknowledged_by = actor[:200]
    row.acknowledgement = text
    _check(row)
    row.save(update_fields=["acknowledged_at", "acknowledged_by", "acknowledgement"])


def _check(row: models.Model) -> None:
    """Rules of the fields that change; the rest is what a shipment or a poll said."""
    names = {"acknowledged_at", "acknowledged_by", "acknowledgement"}
    row.clean_fields(exclude={field.name for field in row._meta.fields} - names)

"""Recording isolation violations from shipments, and acknowledging them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

from django.db import transaction
from django.utils import timezone

from controlplane.audit.services import record
from controlplane.errors import Conflict, Invalid, NotFound
from controlplane.fleet.findings import Observation, observe, resolve
from controlplane.fleet.models import Finding
from controlplane.isolation.models import IsolationViolation
from router.contract.telemetry import Shipment, Violation

FINDING_KIND = "isolation_violation"
ACKNOWLEDGEMENT_LENGTH_MAX = 500


def record_violations(shipments: Sequence[Shipment]) -> None:
    """Inside the ingest transaction. A request is recorded once, however often it is reported."""
    found = [violation for shipment in shipments for violation in shipment.violations]
    if not found:
        return
    IsolationViolation.objects.bulk_create([_row(violation) for violation in found], ignore_conflicts=True)
    counts = Counter(violation.namespace for violation in found)
    observe([_observation(namespace, count) for namespace, count in counts.items()], at=timezone.now())


def _row(violation: Violation) -> IsolationViolation:
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
    )


def _observation(namespace: str, count: int) -> Observation:
    answers = "answer had" if count == 1 else f"{count} answers had"
    message = f"{answers.capitalize()} more cached tokens than the namespace's own history allows."
    return Observation(FINDING_KIND, namespace, message, Finding.Severity.CRITICAL)


def acknowledge_violation(
    violation_id: int, *, actor: str, acknowledgement: str, request_id: str = ""
) -> IsolationViolation:
    """Notes who looked and what they concluded; the finding closes with the namespace's last open violation."""
    text = acknowledgement.strip()
    if not text or len(text) > ACKNOWLEDGEMENT_LENGTH_MAX:
        raise Invalid.field("acknowledgement", f"Say what was found, in 1–{ACKNOWLEDGEMENT_LENGTH_MAX} characters.")
    with transaction.atomic():
        violation = IsolationViolation.objects.select_for_update().filter(pk=violation_id).first()
        if violation is None:
            raise NotFound("There is no such violation.")
        if violation.acknowledged_at is not None:
            raise Conflict(f"It was acknowledged by {violation.acknowledged_by} already.")
        violation.acknowledged_at = timezone.now()
        violation.acknowledged_by = actor[:200]
        violation.acknowledgement = text
        violation.full_clean(validate_unique=False)
        violation.save()
        record(
            actor=actor, action="violation.acknowledge", object_type="violation", object_id=violation.request_id,
            before={"acknowledged": False}, after={"acknowledged": True, "acknowledgement": text},
            affects_routing=False, request_id=request_id,
        )  # fmt: skip
        if not IsolationViolation.objects.filter(namespace=violation.namespace, acknowledged_at=None).exists():
            resolve([violation.namespace], [FINDING_KIND], at=violation.acknowledged_at)
    return violation

"""Acknowledging isolation violations."""

from __future__ import annotations

import pytest
from django.utils import timezone

from controlplane.audit.models import AuditEntry
from controlplane.errors import Conflict, Invalid, NotFound
from controlplane.fleet.models import Finding
from controlplane.isolation.models import IsolationViolation
from controlplane.isolation.services import acknowledge_violation, record_violations
from router.contract.telemetry import Shipment, Violation

pytestmark = pytest.mark.django_db


@pytest.fixture
def two() -> list[IsolationViolation]:
    record_violations([Shipment("r", "b", 0, 0.0, violations=[_violation("q1"), _violation("q2")])])
    return list(IsolationViolation.objects.order_by("request_id"))


def _violation(request_id: str) -> Violation:
    return Violation(
        at=timezone.now().timestamp(), request_id=request_id, tenant="a", namespace="a/n", pool="p", worker="p/w1",
        model="m", prompt_tokens=100, cached_tokens=64, bound_tokens=0,
    )  # fmt: skip


def test_the_finding_closes_with_the_last_violation(two):
    acknowledge_violation(two[0].pk, actor="user:alice", acknowledgement="A test of ours.")
    assert Finding.objects.get().resolved_at is None
    acknowledge_violation(two[1].pk, actor="user:alice", acknowledgement="The same.")
    assert Finding.objects.get().resolved_at is not None
    entry = AuditEntry.objects.order_by("-id").first()
    assert (entry.action, entry.affects_routing) == ("violation.acknowledge", False)


def test_it_is_acknowledged_once_and_with_words(two):
    for text in ("", "   ", "x" * 501):
        with pytest.raises(Invalid):
            acknowledge_violation(two[0].pk, actor="user:alice", acknowledgement=text)
    acknowledge_violation(two[0].pk, actor="user:alice", acknowledgement="Seen.")
    with pytest.raises(Conflict, match="user:alice"):
        acknowledge_violation(two[0].pk, actor="user:bob", acknowledgement="Seen too.")
    with pytest.raises(NotFound):
        acknowledge_violation(0, actor="user:alice", acknowledgement="Seen.")

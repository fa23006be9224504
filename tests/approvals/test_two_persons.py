"""A change that two persons must agree on: the proposer never approves, and both are in the audit log."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from controlplane.approvals import registry, services
from controlplane.approvals.models import ChangeRequest
from controlplane.approvals.registry import Kind
from controlplane.audit.models import AuditEntry
from controlplane.errors import Conflict, Forbidden, Invalid

ALICE, CAROL = "user:alice", "user:carol"
done: list[tuple[str, str]] = []


def _check(subject: str, change: dict[str, object]) -> None:
    if "to" not in change:
        raise Invalid.field("change.to", "Name the value.")


@pytest.fixture(autouse=True)
def sharing(db, monkeypatch) -> None:
    monkeypatch.setattr(registry, "_kinds", {})
    done.clear()
    registry.register_change(
        Kind("test.sharing", lambda *, subject, change, actor, **_: done.append((subject, actor)), _check)
    )


def _proposed(**kwargs: object) -> ChangeRequest:
    values = {"kind": "test.sharing", "subject": "acme/support", "change": {"to": "shared"}, "reason": "one corpus"}
    return services.propose(actor=ALICE, **(values | kwargs))


def test_another_person_approves_and_it_is_applied() -> None:
    row = services.approve(_proposed().pk, actor=CAROL, decision="agreed")
    assert done == [("acme/support", CAROL)]
    assert (row.state, row.proposed_by, row.decided_by) == ("applied", ALICE, CAROL)
    assert [(entry.actor, entry.action) for entry in AuditEntry.objects.order_by("id")] == [
        (ALICE, "change.propose"),
        (CAROL, "change.approve"),
    ]


@pytest.mark.parametrize("actor", [ALICE, f"{ALICE} token:ci"])
def test_the_proposer_may_not_approve(actor: str) -> None:
    row = _proposed()
    with pytest.raises(Forbidden):
        services.approve(row.pk, actor=actor)
    assert not done and ChangeRequest.objects.get().state == "pending"


def test_the_database_refuses_one_person_too() -> None:
    row = _proposed()
    with pytest.raises(IntegrityError), transaction.atomic():
        ChangeRequest.objects.filter(pk=row.pk).update(state="applied", decided_by=ALICE)


def test_nobody_approves_what_expired_or_was_decided() -> None:
    late = _proposed(open_for=timedelta(0))
    with pytest.raises(Conflict):
        services.approve(late.pk, actor=CAROL)
    assert services.expire_due(now=timezone.now()) == 1
    second = _proposed()
    assert services.reject(second.pk, actor=CAROL, decision="no").state == "rejected"
    with pytest.raises(Conflict):
        services.approve(second.pk, actor=CAROL)
    assert services.reject(_proposed().pk, actor=ALICE, decision="").state == "withdrawn"
    assert not done


def test_an_application_that_fails_leaves_it_pending(monkeypatch) -> None:
    def refuse(**_: object) -> None:
        raise Conflict("The namespace is revoked.")

    row = _proposed()
    registry.register_change(Kind("test.sharing", refuse, _check))
    with pytest.raises(Conflict, match="revoked"):
        services.approve(row.pk, actor=CAROL)
    assert ChangeRequest.objects.get().state == "pending"
    assert AuditEntry.objects.count() == 1


def test_a_subject_has_one_pending_change_and_a_reason() -> None:
    _proposed()
    with pytest.raises(Conflict):
        _proposed()
    with pytest.raises(Invalid):
        _proposed(subject="acme/other", reason=" ")
    with pytest.raises(Invalid):
        _proposed(subject="acme/other", change={})
    with pytest.raises(Invalid):
        _proposed(kind="unknown")

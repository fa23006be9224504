"""Proposing and deciding changes that need two persons. Each is one transaction with one audit entry."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from controlplane.approvals.models import ChangeRequest
from controlplane.approvals.registry import kind_of
from controlplane.audit.services import lock_chain, record
from controlplane.errors import Conflict, Forbidden, Invalid, NotFound
from controlplane.saving import expect_revision, save_checked

State = ChangeRequest.State
OPEN_FOR = timedelta(days=7)
REASON_LENGTH_MAX = 500


def propose(
    *,
    actor: str,
    kind: str,
    subject: str,
    change: dict[str, Any],
    reason: str,
    tenant: str = "",
    open_for: timedelta = OPEN_FOR,
    request_id: str = "",
) -> ChangeRequest:
    """Ask for a change of a registered kind. Raises Invalid, Conflict (one is pending), or what its check raises."""
    text = reason.strip()
    if not text or len(text) > REASON_LENGTH_MAX:
        raise Invalid.field("reason", f"Say why, in 1–{REASON_LENGTH_MAX} characters: the second person reads it.")
    kind_of(kind).check(subject, change)
    now = timezone.now()
    with transaction.atomic():
        lock_chain()
        expire_due(now=now, kind=kind, subject=subject)
        if ChangeRequest.objects.filter(kind=kind, subject=subject, state=State.PENDING).exists():
            raise Conflict("A change of this kind already waits for approval: decide on it first.")
        row = ChangeRequest(
            kind=kind,
            subject=subject,
            tenant=tenant,
            change=change,
            reason=text,
            proposed_by=actor[:200],
            proposed_at=now,
            expires_at=now + open_for,
        )
        save_checked(row)
        _record(row, actor=actor, verb="propose", before=None, reason=text, request_id=request_id)
    return row


def approve(
    change_id: int, *, actor: str, decision: str = "", if_revision: int | None = None, request_id: str = ""
) -> ChangeRequest:
    """Apply a pending change. Raises Forbidden for its proposer, Conflict for one that is decided or expired."""
    with transaction.atomic():
        row = _open_row(change_id, if_revision)
        if person_of(actor) == person_of(row.proposed_by):
            raise Forbidden("Another person must approve what you proposed.", code="same_person")
        before = _facts(row)
        kind_of(row.kind).apply(
            subject=row.subject, change=row.change, actor=actor, reason=row.reason, request_id=request_id
        )
        _decide(row, State.APPLIED, actor=actor, decision=decision)
        _record(row, actor=actor, verb="approve", before=before, reason=decision, request_id=request_id)
    return row


def reject(
    change_id: int, *, actor: str, decision: str, if_revision: int | None = None, request_id: str = ""
) -> ChangeRequest:
    """Refuse a pending change; its proposer withdraws it by the same call."""
    with transaction.atomic():
        row = _open_row(change_id, if_revision)
        before = _facts(row)
        own = person_of(actor) == person_of(row.proposed_by)
        _decide(row, State.WITHDRAWN if own else State.REJECTED, actor=actor, decision=decision)
        verb = "withdraw" if own else "reject"
        _record(row, actor=actor, verb=verb, before=before, reason=decision, request_id=request_id)
    return row


def expire_due(*, now: datetime | None = None, kind: str = "", subject: str = "") -> int:
    """Close what nobody approved in time, of one subject or of all. How many."""
    rows = ChangeRequest.objects.filter(state=State.PENDING, expires_at__lte=now or timezone.now())
    if kind:
        rows = rows.filter(kind=kind, subject=subject)
    closed = 0
    for change_id in list(rows.values_list("pk", flat=True)):
        with transaction.atomic():
            lock_chain()
            row = ChangeRequest.objects.select_for_update().get(pk=change_id)
            if row.state != State.PENDING:
                continue
            before = _facts(row)
            _decide(row, State.EXPIRED, actor="", decision="")
            _record(row, actor="system:approvals", verb="expire", before=before, reason="", request_id="")
            closed += 1
    return closed


def person_of(actor: str) -> str:
    """Who stands behind an actor's name: `user:alice` and `user:alice token:ci` are one person."""
    return actor.split(" ", 1)[0]


def _open_row(change_id: int, if_revision: int | None) -> ChangeRequest:
    lock_chain()
    row = ChangeRequest.objects.select_for_update().filter(pk=change_id).first()
    if row is None:
        raise NotFound("There is no such change request.")
    expect_revision(row, if_revision)
    if row.state != State.PENDING:
        raise Conflict(f"The change request is {row.state}.")
    if not row.is_open(timezone.now()):
        raise Conflict("The change request has expired: propose it again.")
    return row


def _decide(row: ChangeRequest, state: State, *, actor: str, decision: str) -> None:
    row.state = state
    row.decided_by = actor[:200]
    row.decided_at = timezone.now()
    row.decision = decision.strip()[:REASON_LENGTH_MAX]
    row.revision += 1
    save_checked(row)


def _facts(row: ChangeRequest) -> dict[str, object]:
    return {
        "kind": row.kind,
        "subject": row.subject,
        "change": row.change,
        "state": str(row.state),
        "proposed_by": row.proposed_by,
        "decided_by": row.decided_by,
        "expires_at": row.expires_at.isoformat(),
    }


def _record(
    row: ChangeRequest, *, actor: str, verb: str, before: dict[str, object] | None, reason: str, request_id: str
) -> None:
    record(
        actor=actor,
        action=f"change.{verb}",
        object_type="change",
        object_id=str(row.pk),
        before=before,
        after=_facts(row),
        affects_routing=False,
        reason=reason,
        request_id=request_id,
    )

"""A call with an Idempotency-Key: claimed, then finished in the change's own transaction, or released.

    claim    commits "in flight" under a lease      another call meanwhile: 409
    finish   commits with the change                 a repeat: the kept answer
    release  after an error: nothing took effect     a repeat is tried afresh

When the process or the database dies between, the lease runs out and a repeat takes over with a higher attempt; should
the first one still be running, its `finish` finds the higher attempt and its change is rolled back. So whatever is lost
on the way, the change commits once.
"""

from __future__ import annotations

import base64
import contextlib
import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cryptography.fernet import Fernet
from django.conf import settings
from django.db import DatabaseError, IntegrityError, transaction

from controlplane.errors import Conflict, Invalid
from controlplane.idempotency.models import IdempotentCall

KEPT_FOR = timedelta(hours=24)
LEASE = timedelta(seconds=30)
"""Longer than any change takes; after a crash a repeat has to wait this long."""
RETRY_AFTER_S = 1


class InFlight(Conflict):
    code = "in_flight"
    retry_after_s = RETRY_AFTER_S

    def __init__(self) -> None:
        super().__init__("A call with this Idempotency-Key is under way. Repeat it in a moment.")


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to carry out one call, this time."""

    row_id: int
    attempt: int
    caller: str
    key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: str = field(repr=False)
    """JSON text, "" for none; it may hold a secret."""
    headers: dict[str, str] = field(default_factory=dict)


def claim(*, caller: str, key: str, request_hash: str, now: datetime) -> Claim | Answer:
    """A claim, or the kept answer when the call has been carried out.

    Raises InFlight while another one is under way, Invalid (`key_reused`) when the key belongs to another call.
    """
    with transaction.atomic():
        row = _row(caller, key)
        if row is not None and row.created_at <= now - KEPT_FOR:
            row.delete()
            row = None
        if row is None:
            return _first(caller, key, request_hash, now)
        if row.request_hash != request_hash:
            raise Invalid("This Idempotency-Key came with another call; each needs its own.", code="key_reused")
        if row.is_done:
            return _opened(row, key)
        if row.lease_until > now:
            raise InFlight()
        row.attempt += 1
        row.lease_until = now + LEASE
        row.save(update_fields=["attempt", "lease_until"])
        return Claim(row.pk, row.attempt, caller, key)


def finish(held: Claim, answer: Answer) -> None:
    """Keep the answer, inside the transaction of the change. Raises InFlight when another attempt took over."""
    sealed = _cipher(held.caller, held.key).encrypt(json.dumps([answer.body, answer.headers]).encode()).decode()
    mine = IdempotentCall.objects.filter(pk=held.row_id, attempt=held.attempt, is_done=False)
    if not mine.update(is_done=True, status=answer.status, answer=sealed):
        raise InFlight()


def release(held: Claim) -> None:
    """After an error: the next call is the first. When the database is away, the lease runs out instead."""
    with contextlib.suppress(DatabaseError):
        IdempotentCall.objects.filter(pk=held.row_id, attempt=held.attempt, is_done=False).delete()


def forget_old(now: datetime) -> int:
    """Delete what is past its time; how many."""
    return IdempotentCall.objects.filter(created_at__lte=now - KEPT_FOR).delete()[0]


def _row(caller: str, key: str) -> IdempotentCall | None:
    rows = IdempotentCall.objects.select_for_update()
    return rows.filter(caller=caller, key_hash=_key_hash(caller, key)).first()


def _first(caller: str, key: str, request_hash: str, now: datetime) -> Claim:
    row = IdempotentCall(
        caller=caller,
        key_hash=_key_hash(caller, key),
        request_hash=request_hash,
        lease_until=now + LEASE,
        created_at=now,
    )
    try:
        with transaction.atomic():
            row.save(force_insert=True)
    except IntegrityError:  # two first calls at once
        raise InFlight() from None
    return Claim(row.pk, row.attempt, caller, key)


def _opened(row: IdempotentCall, key: str) -> Answer:
    body, headers = json.loads(_cipher(row.caller, key).decrypt(row.answer.encode()))
    return Answer(status=row.status, body=body, headers=headers)


def _key_hash(caller: str, key: str) -> str:
    return settings.FLEET_KEY.mac("idempotency-key/v1", caller, key).hex()


def _cipher(caller: str, key: str) -> Fernet:
    return Fernet(base64.urlsafe_b64encode(settings.FLEET_KEY.mac("idempotent-answer/v1", caller, key)))

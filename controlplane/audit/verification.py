"""Whether the audit log is whole: every link of the chain, then its signed end (S24)."""

from __future__ import annotations

import hmac
import time
from dataclasses import dataclass

from django.db import transaction
from django.utils import timezone

from controlplane.audit.chain import GENESIS_HASH, hash_of
from controlplane.audit.models import AuditEntry, AuditHead, AuditVerification
from controlplane.audit.services import head_signature, lock_chain

ROWS_PER_FETCH = 1000
VERIFICATIONS_KEPT = 200
"""Results: a week of hourly ones."""


@dataclass(frozen=True, slots=True)
class Verdict:
    entries: int
    """Entries found sound before the first bad one."""
    bad_id: int | None = None
    """Id of the first entry that is altered, missing, out of order or cut off; None when the log is whole."""
    fault: str = ""


def verify_chain() -> Verdict:
    """Reads the whole log once, in constant memory. Run it in a transaction when changes may come in meanwhile."""
    head = AuditHead.objects.first()
    expected_id, previous_hash = 1, GENESIS_HASH
    for entry in AuditEntry.objects.order_by("id").iterator(chunk_size=ROWS_PER_FETCH):
        fault = _fault_of(entry, expected_id=expected_id, previous_hash=previous_hash)
        if fault:
            return Verdict(expected_id - 1, expected_id, fault)
        expected_id, previous_hash = expected_id + 1, entry.hash
    return _check_head(head, last_id=expected_id - 1, last_hash=previous_hash)


def verify_and_note(*, by: str) -> AuditVerification:
    """Verifies while nobody writes, and keeps the last VERIFICATIONS_KEPT results."""
    began = time.monotonic()
    with transaction.atomic():
        lock_chain()
        verdict = verify_chain()
        head = AuditHead.objects.first()
        row = AuditVerification.objects.create(
            at=timezone.now(), by=by[:200], entries=verdict.entries, bad_id=verdict.bad_id, fault=verdict.fault[:300],
            head_hash=head.last_hash if head else "", seconds=time.monotonic() - began,
        )  # fmt: skip
    old = AuditVerification.objects.values_list("pk", flat=True)[VERIFICATIONS_KEPT:]
    AuditVerification.objects.filter(pk__in=list(old)).delete()
    return row


def _fault_of(entry: AuditEntry, *, expected_id: int, previous_hash: str) -> str:
    if entry.id != expected_id:
        return f"entry {expected_id} is missing (the next one found is {entry.id})"
    if entry.previous_hash != previous_hash:
        return f"entry {entry.id} does not follow from the one before it"
    if hash_of(previous_hash, entry) != entry.hash:
        return f"entry {entry.id} was altered"
    return ""


def _check_head(head: AuditHead | None, *, last_id: int, last_hash: str) -> Verdict:
    if head is None:
        return Verdict(0) if last_id == 0 else Verdict(last_id, last_id, "the signed head is missing")
    signature = head_signature(last_id=head.last_id, last_hash=head.last_hash)
    if not hmac.compare_digest(signature, head.signature):
        return Verdict(last_id, last_id, "the head's signature does not fit: altered, or another fleet key")
    if head.last_id > last_id:
        return Verdict(
            last_id, last_id + 1, f"the log was cut off: entries {last_id + 1} to {head.last_id} are missing"
        )
    if (head.last_id, head.last_hash) != (last_id, last_hash):
        return Verdict(last_id, last_id, "the log was rewritten: its end is not the one that was signed")
    return Verdict(last_id)

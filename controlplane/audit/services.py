"""The one way into the audit log."""

from __future__ import annotations

from django.conf import settings
from django.db import connection, transaction
from django.utils import timezone
from django.utils.module_loading import import_string

from controlplane.audit.chain import GENESIS_HASH, hash_of
from controlplane.audit.guards import check_guards
from controlplane.audit.models import AuditEntry, AuditHead

_LOCK_ID = 0x54494445_41554454
"""Advisory lock "TIDEAUDT" of PostgreSQL: held from the first `lock_chain` of a transaction to its end."""


def record(
    *,
    actor: str,
    action: str,
    object_type: str,
    object_id: str,
    before: dict[str, object] | None,
    after: dict[str, object] | None,
    affects_routing: bool,
    reason: str = "",
    request_id: str = "",
) -> AuditEntry:
    """Append one entry, inside the transaction of the change it tells of (RuntimeError outside of one).

    `before` and `after` are JSON objects without secrets. `affects_routing` asks for a publication after the commit.
    """
    check_guards(actor=actor, action=action, object_type=object_type, object_id=object_id)
    head = lock_chain()
    entry = AuditEntry(
        id=head.last_id + 1,
        at=timezone.now(),
        actor=actor[:200],
        action=action,
        object_type=object_type,
        object_id=object_id,
        before=before,
        after=after,
        reason=reason[:500],
        request_id=request_id[:64],
        affects_routing=affects_routing,
        previous_hash=head.last_hash,
    )
    entry.hash = hash_of(entry.previous_hash, entry)
    entry.save(force_insert=True)
    _advance(head, entry)
    if affects_routing:
        # Robust: a publication that fails is due still, and the next tick or poll makes up for it.
        transaction.on_commit(lambda: import_string(settings.TIDEMARK_ON_ROUTING_CHANGE)(), robust=True)
    return entry


def lock_chain() -> AuditHead:
    """The chain's head, locked until the transaction ends: writers commit in the order of their ids.

    SQLite's IMMEDIATE transactions are that lock already. Raises RuntimeError outside a transaction.
    """
    if not connection.in_atomic_block:
        raise RuntimeError("the audit chain is written inside a transaction only")
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK_ID])
    head = AuditHead.objects.filter(id=AuditHead.ONLY_ID).first()
    return head or AuditHead(id=AuditHead.ONLY_ID, last_id=0, last_hash=GENESIS_HASH)


def head_signature(*, last_id: int, last_hash: str) -> str:
    return settings.FLEET_KEY.mac("audit-head/v1", str(last_id), last_hash).hex()


def _advance(head: AuditHead, entry: AuditEntry) -> None:
    head.last_id = entry.id
    head.last_hash = entry.hash
    head.signature = head_signature(last_id=head.last_id, last_hash=head.last_hash)
    head.save()

"""The fleet's epoch, revocations in the transaction of their change, and routers' acknowledgements of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from django.db import transaction
from django.utils import timezone

from controlplane.audit.models import AuditEntry
from controlplane.audit.services import lock_chain
from controlplane.revocations.models import FleetEpoch, Revocation, RouterAck

EPOCH_FIRST = 1


def revoke(
    entry: AuditEntry, *, kind: str, subject: str, tenant: str = "", retired: int = 0, denies_when_stale: bool = False
) -> Revocation:
    """Give the change that `entry` tells of its epoch, inside the transaction of the change."""
    return Revocation.objects.create(
        epoch=raise_epoch(),
        kind=kind,
        subject=subject,
        tenant=tenant,
        retired=retired,
        denies_when_stale=denies_when_stale,
        reason=entry.reason,
        actor=entry.actor,
        audit_id=entry.id,
        created_at=timezone.now(),
    )


def retired_generation(*, kind: str, subject: str) -> int:
    """The last generation of the subject that a revocation ended; 0 = none."""
    newest = Revocation.objects.filter(kind=kind, subject=subject).order_by("-retired").first()
    return newest.retired if newest is not None else 0


def current_epoch() -> int:
    row = FleetEpoch.objects.filter(id=FleetEpoch.ONLY_ID).first()
    return row.value if row is not None else EPOCH_FIRST


def raise_epoch(*, to: int = 0) -> int:
    """The next epoch, or `to` where that is higher. Epochs have the order of the audit chain, whose lock this takes."""
    lock_chain()
    value = max(current_epoch() + 1, to)
    FleetEpoch.objects.update_or_create(id=FleetEpoch.ONLY_ID, defaults={"value": value})
    return value


def await_acks(
    revocations: Sequence[Revocation], routers: Sequence[tuple[str, datetime, int]], *, at: datetime
) -> None:
    """Revocations were sent to `routers`, (id, last seen, its epoch) each: from now on their answers are awaited."""
    acks = [
        _ack(row, router, seen_at, has_it=epoch >= row.epoch)
        for row in revocations
        for router, seen_at, epoch in routers
    ]
    with transaction.atomic():
        RouterAck.objects.bulk_create(acks, ignore_conflicts=True)
        Revocation.objects.filter(pk__in=[row.pk for row in revocations], announced_at=None).update(announced_at=at)


def _ack(row: Revocation, router: str, seen_at: datetime, *, has_it: bool) -> RouterAck:
    """A router may have polled between the change and its announcement."""
    ack = RouterAck(revocation=row, router_id=router, seen_at=seen_at)
    if has_it:
        ack.acked_at, ack.way = max(seen_at, row.created_at), RouterAck.Way.POLL
    return ack


def note_direct_ack(router: str, epochs: Collection[int], *, at: datetime) -> int:
    """A router answered a revocation sent to it. How many acknowledgements that were awaited it settles."""
    awaited = RouterAck.objects.filter(router_id=router, acked_at=None, revocation__epoch__in=epochs)
    return awaited.update(acked_at=at, way=RouterAck.Way.DIRECT)


def note_epoch_reached(router: str, epoch: int, *, at: datetime) -> int:
    """A router's sign of life said that every revocation up to `epoch` is in force. As `note_direct_ack`."""
    awaited = RouterAck.objects.filter(router_id=router, acked_at=None, revocation__epoch__lte=epoch)
    return awaited.update(acked_at=at, way=RouterAck.Way.POLL)


def forget_acks(*, made_before: datetime) -> int:
    """Delete what routers said of revocations that were made before; the revocations stay. How many."""
    deleted, _ = RouterAck.objects.filter(revocation__created_at__lt=made_before).delete()
    return deleted

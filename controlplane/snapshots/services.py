"""Publishing snapshots. Level-triggered: one is due whenever a change that affects routing is not covered yet.

It is looked for after each such commit, by a beat tick and at each poll of a router, so a lost push, a crash
between commit and publication, or two publishers at once need no care of their own.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime

from django.conf import settings
from django.db import DatabaseError, transaction
from django.db.models import Max
from django.utils import timezone

from controlplane.audit.models import AuditEntry
from controlplane.audit.services import lock_chain
from controlplane.errors import Unavailable
from controlplane.revocations.services import current_epoch, raise_epoch
from controlplane.snapshots.announcing import announced
from controlplane.snapshots.compiler import compile_snapshot
from controlplane.snapshots.models import PublishedSnapshot
from controlplane.snapshots.push import push_newest
from controlplane.snapshots.selectors import current, publication_due
from router.contract.snapshot import PolicySnapshot, body_text, digest_of, encode_document, sign_snapshot

log = logging.getLogger(__name__)

SNAPSHOTS_KEPT = 50
"""For comparing and for questions about yesterday; about 250 bytes a key each."""

WITHDRAWING_ACTIONS = ("tenant.suspend", "namespace.suspend", "namespace.rotate")
"""Audit actions that take something away without being a revocation, which has an epoch of its own: their publication
raises the epoch, below which no router ever goes back."""


def publish_after_commit() -> None:
    """Called after the commit of a change that affects routing. Never raises: what fails here is due still.

    A revocation is on its way to the routers while the snapshot that holds it is compiled. A transaction of many
    changes calls it for each of them: the first publishes, and the others cost two small queries.
    """
    try:
        with announced():
            if publication_due():
                publish_pending()
    except (DatabaseError, Unavailable):
        log.warning("publication after a commit failed; the next tick or poll makes up for it", exc_info=True)


def publish_pending() -> PublishedSnapshot:
    """Publish what is due and return the current snapshot.

    The first is due at once, however empty: routers are ready, and refuse unknown keys, from then on.
    """
    last = current()
    return _publish(even_if_covered=False) if last is None or publication_due() else last


def reconcile() -> PublishedSnapshot:
    """Compile whether or not a change is known, and publish what differs.

    It takes along what nobody audits: the KV capacity that a worker said it has, or a row mended by hand.
    """
    return _publish(even_if_covered=True)


def publish_above(*, version: int, epoch: int) -> PublishedSnapshot:
    """Publish the present state under a higher version than `version`, which a router says it serves.

    That happens when the database was restored from a backup or begun again: routers never go back to a lower
    version or epoch, so without this they would refuse everything until the count had caught up.
    """
    log.warning("a router serves v%d, which this database never published: publishing above it", version)
    return _publish(even_if_covered=True, above=Floor(version=version, epoch=epoch))


@dataclass(frozen=True, slots=True)
class Floor:
    """Highest version and epoch known to be in use: the next snapshot is above the one and not below the other."""

    version: int = 0
    epoch: int = 1


def _publish(*, even_if_covered: bool, above: Floor = Floor()) -> PublishedSnapshot:
    with transaction.atomic():
        snapshot, is_fresh = _publish_locked(even_if_covered=even_if_covered, above=above)
    if is_fresh:
        log.info("published snapshot v%d (epoch %d)", snapshot.version, snapshot.epoch)
        push_newest()
    return snapshot


def _publish_locked(*, even_if_covered: bool, above: Floor) -> tuple[PublishedSnapshot, bool]:
    """(current snapshot, whether it was made here). The chain's lock makes publishers and writers take turns."""
    lock_chain()
    last = current()
    through = AuditEntry.objects.filter(affects_routing=True).aggregate(last=Max("id"))["last"] or 0
    if last is not None and last.through_audit_id >= through and not even_if_covered:
        return last, False
    compiled = compile_snapshot()
    if last is not None and last.version > above.version and digest_of(body_text(compiled)) == last.digest:
        if last.through_audit_id != through:
            last.through_audit_id = through
            last.save(update_fields=["through_audit_id"])
        return last, False
    return _store(compiled, last=last, above=above, through_audit_id=through), True


def _store(
    compiled: PolicySnapshot, *, last: PublishedSnapshot | None, above: Floor, through_audit_id: int
) -> PublishedSnapshot:
    document = sign_snapshot(
        compiled,
        version=max(last.version if last else 0, above.version) + 1,
        epoch=_epoch(last, above=above.epoch),
        created_at=timezone.now().timestamp(),
        fleet_key=settings.FLEET_KEY,
    )
    fresh = PublishedSnapshot.objects.create(
        version=document.version,
        epoch=document.epoch,
        created_at=datetime.fromtimestamp(document.created_at, UTC),
        digest=document.digest,
        document=encode_document(document).decode(),
        through_audit_id=through_audit_id,
    )
    kept = PublishedSnapshot.objects.order_by("-version").values_list("version", flat=True)[:SNAPSHOTS_KEPT]
    PublishedSnapshot.objects.filter(version__lt=min(kept)).delete()
    return fresh


def _epoch(last: PublishedSnapshot | None, *, above: int) -> int:
    """Of the snapshot being made: that of the newest revocation, and never below what was published or is in use."""
    reached = max(current_epoch(), above, last.epoch if last else 0)
    if last is not None:
        withdrawn = AuditEntry.objects.filter(id__gt=last.through_audit_id, action__in=WITHDRAWING_ACTIONS)
        reached = max(reached, last.epoch + 1) if withdrawn.exists() else reached
    return reached if reached == current_epoch() else raise_epoch(to=reached)

"""Changes of placement rules: check, save, audit and publication in one transaction."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from controlplane.audit.services import lock_chain, record
from controlplane.errors import Conflict, Invalid, NotFound
from controlplane.fleet.models import WorkerPool
from controlplane.namespaces.models import CacheNamespace
from controlplane.placements.models import PlacementRule
from controlplane.saving import expect_revision, save_checked

LASTS_MAX = timedelta(days=7)
"""What is meant to last longer is no override: the load itself keeps a hot prefix spread."""
IN_FORCE_MAX = 1000
"""Rules of the fleet at one time: each is about 150 bytes of every snapshot."""
KEPT_FOR = timedelta(days=30)
"""Rules that ended."""
SYSTEM = "system:placements"

Outcome = PlacementRule.Outcome


def spread_prefix(
    *,
    actor: str,
    namespace: str,
    pool: str,
    prefix: str,
    homes: int,
    until: datetime,
    reason: str = "",
    request_id: str = "",
) -> PlacementRule:
    """Give a prefix at least `homes` homes until then; one that has a rule gets these values in its place.

    Raises NotFound, Invalid with the fields' errors, or Conflict when too many rules are in force.
    """
    now = timezone.now()
    _check_end(until, now)
    with transaction.atomic():
        lock_chain()  # two first rules of one prefix must not both insert
        where, which = _namespace(namespace), _pool(pool)
        row = PlacementRule.objects.filter(namespace=where, pool=which, prefix=prefix, ended_at=None).first()
        if row is None:
            _refuse_too_many()
            row = PlacementRule(namespace=where, pool=which, prefix=prefix, created_by=actor[:200], created_at=now)
            before = None
        else:
            before = _facts(row)
            row.revision += 1
        row.homes, row.until, row.reason = homes, until, reason[:500]
        save_checked(row)
        _record(row, "set", actor=actor, before=before, after=_facts(row), reason=reason, request_id=request_id)
    return row


def revert_placement(
    placement_id: int, *, actor: str, if_revision: int | None = None, reason: str = "", request_id: str = ""
) -> PlacementRule:
    """End a rule at once; its load alone spreads the prefix then. Raises NotFound, Stale, or Conflict when it ended."""
    with transaction.atomic():
        lock_chain()
        row = _row(placement_id)
        expect_revision(row, if_revision)
        if row.ended_at is not None:
            raise Conflict("This placement rule has ended already.")
        _end(row, Outcome.REVERTED, actor=actor, reason=reason, request_id=request_id)
    return row


def expire_placements(now: datetime | None = None) -> int:
    """Write down the rules whose time is over and forget those that ended long ago; how many ended."""
    moment = now or timezone.now()
    over = list(PlacementRule.objects.filter(ended_at=None, until__lte=moment).values_list("pk", flat=True))
    for placement_id in over:
        with transaction.atomic():
            lock_chain()
            row = _row(placement_id)
            if row.ended_at is None and row.until <= moment:
                _end(row, Outcome.EXPIRED, actor=SYSTEM, reason="Its time is over.")
    PlacementRule.objects.filter(ended_at__lt=moment - KEPT_FOR).delete()
    return len(over)


def _end(row: PlacementRule, outcome: Outcome, *, actor: str, reason: str, request_id: str = "") -> None:
    before = _facts(row)
    row.ended_at, row.ended_by, row.outcome = timezone.now(), actor[:200], outcome
    row.revision += 1
    save_checked(row)
    verb = "revert" if outcome == Outcome.REVERTED else "expire"
    _record(row, verb, actor=actor, before=before, after=None, reason=reason, request_id=request_id)


def _check_end(until: datetime, now: datetime) -> None:
    if until <= now:
        raise Invalid.field("until", "The end must lie in the future.")
    if until > now + LASTS_MAX:
        raise Invalid.field("until", f"A placement rule lasts {LASTS_MAX.days} days at most.")


def _namespace(name: str) -> CacheNamespace:
    tenant, _, slug = name.partition("/")
    row = CacheNamespace.objects.select_related("tenant").filter(tenant__slug=tenant, slug=slug).first()
    if row is None:
        raise NotFound(f"There is no namespace {name!r}.")
    return row


def _pool(slug: str) -> WorkerPool:
    row = WorkerPool.objects.filter(slug=slug).first()
    if row is None:
        raise NotFound(f"There is no pool {slug!r}.")
    return row


def _row(placement_id: int) -> PlacementRule:
    row = PlacementRule.objects.select_related("namespace__tenant", "pool").filter(pk=placement_id).first()
    if row is None:
        raise NotFound("There is no such placement rule.")
    return row


def _refuse_too_many() -> None:
    if PlacementRule.objects.filter(ended_at=None).count() >= IN_FORCE_MAX:
        raise Conflict(f"{IN_FORCE_MAX} placement rules are in force: revert some first.")


def _facts(row: PlacementRule) -> dict[str, object]:
    return {"homes": row.homes, "until": row.until.isoformat(), "revision": row.revision}


def _record(
    row: PlacementRule,
    verb: str,
    *,
    actor: str,
    before: dict[str, object] | None,
    after: dict[str, object] | None,
    reason: str,
    request_id: str,
) -> None:
    record(
        actor=actor,
        action=f"placement.{verb}",
        object_type="placement",
        object_id=f"{row.namespace.namespace_id}:{row.pool.slug}:{row.prefix}",
        before=before,
        after=after,
        affects_routing=True,
        reason=reason,
        request_id=request_id,
    )

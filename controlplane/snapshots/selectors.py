"""Which snapshot is published, whether another is due, and which routers serve which."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal

from django.db.models import Case, CharField, F, Max, OuterRef, Subquery, Value, When
from django.db.models.functions import Coalesce
from django.utils import timezone

from controlplane.audit.models import AuditEntry
from controlplane.snapshots.hellos import hellos_in_valkey
from controlplane.snapshots.models import PublishedSnapshot, RouterStatus
from router.contract.hello import RouterHello

FRESH_FOR_S = 10.0
"""Ten missed signs of life. A router unseen for longer is unknown: it may serve an older snapshot, or be gone."""
FORGOTTEN_AFTER_S = 600.0

RouterFreshness = Literal["fresh", "stale"]


@dataclass(frozen=True, slots=True)
class RouterSeen:
    router: str
    version: int
    """The snapshot it said it serves, when it was last seen; 0 = none."""
    epoch: int
    age_s: float
    """Seconds since its last sign of life."""
    state: RouterFreshness
    """`stale`: which snapshot it serves is unknown."""
    inflight: int = 0
    admin_url: str = ""
    last_error: str = ""
    """Why it refused the newest snapshot, if it did."""
    digest: str = ""
    """Of the snapshot it serves; "" while it does not say."""
    behind_s: float | None = None
    """For how long it has served something else than what is published; None = it serves what is published."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """How far the published snapshot has come: "published v12 · 1 of 1 routers on v12"."""

    version: int | None
    """None while nothing is published."""
    epoch: int | None
    published_at: datetime | None
    digest: str
    routers_total: int
    """Seen within FORGOTTEN_AFTER_S, stale ones included."""
    routers_on_version: int
    """Fresh and on `version`."""
    routers: list[RouterSeen]

    @property
    def is_complete(self) -> bool:
        return self.version is not None and 0 < self.routers_total == self.routers_on_version


def current() -> PublishedSnapshot | None:
    """The newest published snapshot."""
    return PublishedSnapshot.objects.order_by("-version").first()


def publication_due() -> bool:
    """Whether a change that affects routing is not covered by the newest snapshot. One query."""
    covered = PublishedSnapshot.objects.order_by("-version").values("through_audit_id")[:1]
    return AuditEntry.objects.filter(affects_routing=True, id__gt=Coalesce(Subquery(covered), 0)).exists()


@dataclass(frozen=True, slots=True)
class PollState:
    version: int
    is_due: bool
    """A newer one must be published first."""
    document: str = field(repr=False)
    """"" when the router has it already."""


def poll_state(*, served_version: int) -> PollState | None:
    """What a poll needs, in one query; the document is read only when it is sent. None = nothing published."""
    uncovered = AuditEntry.objects.filter(affects_routing=True, id__gt=OuterRef("through_audit_id")).order_by()
    row = (
        PublishedSnapshot.objects.order_by("-version")
        .annotate(
            due=Subquery(uncovered.values("affects_routing").annotate(last=Max("id")).values("last")),
            sent=Case(When(version=served_version, then=Value("")), default=F("document"), output_field=CharField()),
        )
        .values_list("version", "due", "sent")
        .first()
    )
    return PollState(row[0], row[1] is not None, row[2]) if row else None


def rollout(now: datetime | None = None) -> Rollout:
    """Read from what routers told the web server and what they left in Valkey, whichever is younger."""
    now = now or timezone.now()
    kept = list(PublishedSnapshot.objects.order_by("-version").defer("document"))
    version, epoch, published_at, digest = None, None, None, ""
    if kept:
        version, epoch, published_at, digest = kept[0].version, kept[0].epoch, kept[0].created_at, kept[0].digest
    routers = [replace(router, behind_s=behind_s(router, kept, now)) for router in _routers_seen(now)]
    return Rollout(
        version=version,
        epoch=epoch,
        published_at=published_at,
        digest=digest,
        routers_total=len(routers),
        routers_on_version=sum(router.state == "fresh" and router.version == version for router in routers),
        routers=routers,
    )


def behind_s(router: RouterSeen, kept: Sequence[PublishedSnapshot], now: datetime) -> float | None:
    """Seconds since the router should have served something else; `kept`: published snapshots, newest first.

    One whose version is not kept any more has been behind at least since the oldest that is.
    """
    if not kept or (router.version == kept[0].version and router.digest in ("", kept[0].digest)):
        return None
    newer = [snapshot for snapshot in kept if snapshot.version > router.version]
    since = (newer or kept[:1])[-1].created_at
    return max(0.0, (now - since).total_seconds())


def last_seen(now: datetime) -> dict[str, datetime]:
    """Routers' latest signs of life, by id."""
    return {router.router: now - timedelta(seconds=router.age_s) for router in _routers_seen(now)}


def _routers_seen(now: datetime) -> list[RouterSeen]:
    oldest = now - timedelta(seconds=FORGOTTEN_AFTER_S)
    polled = RouterStatus.objects.filter(seen_at__gte=oldest)
    youngest: dict[str, RouterSeen] = {}
    for seen in (*_from_polls(polled, now), *_from_valkey(hellos_in_valkey(), now)):
        known = youngest.get(seen.router)
        if seen.age_s <= FORGOTTEN_AFTER_S and (known is None or seen.age_s < known.age_s):
            youngest[seen.router] = seen
    return [youngest[router] for router in sorted(youngest)]


def _from_polls(rows: Iterable[RouterStatus], now: datetime) -> Iterable[RouterSeen]:
    for row in rows:
        age_s = max(0.0, (now - row.seen_at).total_seconds())
        yield RouterSeen(
            router=row.router_id,
            version=row.snapshot_version,
            epoch=row.epoch,
            age_s=age_s,
            state=_freshness(age_s),
            inflight=row.inflight,
            admin_url=row.admin_url,
            last_error=row.last_error,
            digest=row.digest,
        )


def _from_valkey(hellos: Iterable[RouterHello], now: datetime) -> Iterable[RouterSeen]:
    for hello in hellos:
        age_s = max(0.0, now.timestamp() - hello.at)
        yield RouterSeen(
            router=hello.router,
            version=hello.snapshot_version,
            epoch=hello.epoch,
            age_s=age_s,
            state=_freshness(age_s),
            inflight=hello.inflight,
            admin_url=hello.admin_url,
            last_error=hello.last_error,
            digest=hello.digest,
        )


def _freshness(age_s: float) -> RouterFreshness:
    return "fresh" if age_s <= FRESH_FOR_S else "stale"

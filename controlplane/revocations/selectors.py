"""How far a revocation has come, router by router."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from controlplane.revocations.models import Revocation, RouterAck

LEASE_S = 60.0
"""A router that nobody has vouched for stops serving namespaces that deny when stale within this time."""

WORDING = "unreachable now; resident until evicted"
"""What a revocation does: nothing reaches the cached blocks any more, and they leave memory when others need it."""

AckState = Literal["acknowledged", "pending", "lease_over", "silent"]
"""`lease_over`: it is cut off and has stopped by itself. `silent`: it is cut off and may go on serving."""


@dataclass(frozen=True, slots=True)
class AckSeen:
    router: str
    state: AckState
    at: datetime | None
    """When it acknowledged, or when its lease ran out."""
    ms: float | None
    """From the revocation to `at`."""
    way: str = ""


@dataclass(frozen=True, slots=True)
class RevocationSeen:
    row: Revocation
    routers: list[AckSeen]

    @property
    def state(self) -> Literal["pending", "effective"]:
        is_effective = self.row.announced_at is not None and self.routers_settled == len(self.routers)
        return "effective" if is_effective else "pending"

    @property
    def ms(self) -> float | None:
        """Until the last router; None while one is pending or silent, and where none was known."""
        if self.state == "pending":
            return None
        return max((ack.ms for ack in self.routers if ack.ms is not None), default=None)

    @property
    def routers_settled(self) -> int:
        return sum(ack.state in ("acknowledged", "lease_over") for ack in self.routers)


def recent(tenants: Collection[str] | None, *, most: int) -> list[Revocation]:
    """The newest revocations, with their acks; of these tenants, None = of all and of models too."""
    rows = Revocation.objects.prefetch_related("acks").order_by("-epoch")
    return list((rows if tenants is None else rows.filter(tenant__in=tenants))[:most])


def awaited_routers() -> list[str]:
    """Routers that have not acknowledged something."""
    return list(RouterAck.objects.filter(acked_at=None).order_by().values_list("router_id", flat=True).distinct())


def seen(rows: Iterable[Revocation], last_seen: Mapping[str, datetime], now: datetime) -> list[RevocationSeen]:
    """`rows` with their acks prefetched; `last_seen`: routers' latest signs of life, by id. One that is not in it has
    given none since the revocation was announced."""
    found = []
    for row in rows:
        routers = [_ack_seen(row, ack, last_seen.get(ack.router_id, ack.seen_at), now) for ack in row.acks.all()]
        found.append(RevocationSeen(row, routers))
    return found


def _ack_seen(row: Revocation, ack: RouterAck, seen_at: datetime, now: datetime) -> AckSeen:
    if ack.acked_at is not None:
        return AckSeen(ack.router_id, "acknowledged", ack.acked_at, _ms(row, ack.acked_at), ack.way)
    over_at = max(seen_at, ack.seen_at) + timedelta(seconds=LEASE_S)
    if over_at > now:
        return AckSeen(ack.router_id, "pending", None, None)
    if row.denies_when_stale:
        return AckSeen(ack.router_id, "lease_over", over_at, _ms(row, over_at))
    return AckSeen(ack.router_id, "silent", None, None)


def _ms(row: Revocation, at: datetime) -> float:
    return max(0.0, (at - row.created_at).total_seconds() * 1000)

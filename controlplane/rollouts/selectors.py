"""How far roll-outs have come: which routers say that they have the candidate's values in force."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db.models import F
from django.utils import timezone

from controlplane.policies.models import Rollout
from controlplane.telemetry.models import SourceProgress
from controlplane.telemetry.sources import ROUTERS_LISTED_FOR

RECENT_SHOWN = 5
LISTED_MAX = 100
"""One may run for each scope; of more the newest are listed."""


@dataclass(frozen=True, slots=True)
class Progress:
    rollout: Rollout
    routers_with: list[str]
    routers_without: list[str]
    """Heard of within ten minutes; a router that is silent is in neither list."""

    @property
    def word(self) -> str:
        """How it ended, else what the guard said last; "" before its first word."""
        return self.rollout.outcome or str(self.rollout.verdict.get("sentence", ""))


def progress_of(rollout: Rollout, *, now: datetime | None = None) -> Progress:
    return _progress([rollout], now)[0]


def recent_rollouts(*, now: datetime | None = None) -> list[Progress]:
    """Those under way and the latest that ended, whose routers are not told. At most two queries."""
    listed = list(Rollout.objects.order_by(F("ended_at").desc(nulls_first=True), "-pk")[:LISTED_MAX])
    running = [row for row in listed if row.state == Rollout.State.RUNNING]
    ended = [row for row in listed if row.state != Rollout.State.RUNNING][:RECENT_SHOWN]
    under_way = _progress(running, now) if running else []
    return [*under_way, *(Progress(row, [], []) for row in ended)]


def _progress(rollouts: Iterable[Rollout], now: datetime | None) -> list[Progress]:
    in_force = _variants_by_router(now or timezone.now())
    return [
        Progress(
            rollout,
            sorted(router for router, variants in in_force.items() if rollout.variant_id in variants),
            sorted(router for router, variants in in_force.items() if rollout.variant_id not in variants),
        )
        for rollout in rollouts
    ]


def _variants_by_router(now: datetime) -> dict[str, list[str]]:
    rows = SourceProgress.objects.filter(last_at__gte=now - ROUTERS_LISTED_FOR, router_state__isnull=False)
    newest = {row.source: row.router_state for row in rows.order_by("applied_at", "last_at")}
    return {router: list((state or {}).get("variants", ())) for router, state in newest.items()}

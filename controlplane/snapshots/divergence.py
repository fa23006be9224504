"""Routers of one fleet that serve different snapshots: normal for a second, a finding after half a minute."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from controlplane.fleet.findings import Observation, observe, resolve
from controlplane.fleet.models import Finding
from controlplane.revocations.selectors import awaited_routers
from controlplane.snapshots.hellos import note_acks
from controlplane.snapshots.selectors import Rollout, RouterSeen, rollout

DIVERGES_AFTER_S = 30.0
"""Thirty polls. A router that is slower refuses the snapshot, or has lost the control plane while Valkey still hears
it."""
KIND = "router_diverges"


def watch_routers(now: datetime) -> None:
    """A finding for each router that diverges, closed when it ends; acknowledgements that no poll brought."""
    seen = rollout(now)
    _settle_acks(seen, now)
    observations = [_observation(router, seen) for router in diverging(seen)]
    observe(observations, at=now)
    held = {item.subject for item in observations}
    open_ones = Finding.objects.filter(kind=KIND, resolved_at=None).values_list("subject", flat=True)
    resolve([subject for subject in open_ones if subject not in held], [KIND], at=now)


def diverging(seen: Rollout) -> Iterable[RouterSeen]:
    """A silent router is unknown, not diverging: what it serves nobody can say."""
    return [
        router
        for router in seen.routers
        if router.state == "fresh" and router.behind_s is not None and router.behind_s > DIVERGES_AFTER_S
    ]


def _settle_acks(seen: Rollout, now: datetime) -> None:
    """Of routers that only Valkey hears, and of those that came back after they had been forgotten."""
    awaited = set(awaited_routers())
    for router in seen.routers:
        if router.router in awaited and router.state == "fresh":
            note_acks(router.router, version=router.version, epoch=router.epoch, at=now)


def _observation(router: RouterSeen, seen: Rollout) -> Observation:
    serves = f"v{router.version} (epoch {router.epoch})" if router.version else "no snapshot"
    why = f": {router.last_error}" if router.last_error else "."
    message = f"It serves {serves} while v{seen.version} (epoch {seen.epoch}) is published{why}"
    return Observation(KIND, f"router:{router.router}", message, Finding.Severity.CRITICAL)

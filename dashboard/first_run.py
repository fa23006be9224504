"""What an empty installation still lacks until caching pays, each with the one thing to do; and the same for one
namespace that was just made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Sum

from controlplane.fleet.models import PoolModel
from controlplane.fleet.selectors import WorkerRow, workers_table
from controlplane.namespaces.models import ApiKey, CacheNamespace
from controlplane.snapshots.selectors import RouterSeen, rollout
from controlplane.telemetry.models import RequestRollup, RequestTotal
from controlplane.telemetry.windows import Scope
from controlplane.tenants.models import Status

_HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class Step:
    key: str
    label: str
    done: bool
    detail: str
    """What was found, or what is missing."""
    href: str = ""
    action: str = ""
    """What the link does, in words; "" = nothing on a page does it."""
    command: str = ""
    """To be run on a machine, where no page can do it."""


@dataclass(frozen=True, slots=True)
class Steps:
    steps: list[Step]

    @property
    def done(self) -> int:
        return sum(step.done for step in self.steps)

    @property
    def next(self) -> Step | None:
        """The first that is not done."""
        return next((step for step in self.steps if not step.done), None)


def first_run(scope: Scope, *, now: datetime) -> Steps:
    """Of the whole installation, whatever the scope."""
    requests, hits = _answered()
    return Steps(
        [
            _router(rollout(now).routers),
            _pool(),
            _worker(workers_table(now=now)),
            _tenant(),
            _request(requests),
            _hit(hits, requests),
        ]
    )


def _router(routers: Sequence[RouterSeen]) -> Step:
    fresh = [router.router for router in routers if router.state == "fresh"]
    if fresh:
        return Step("router", "A router is there", True, ", ".join(fresh))
    missing = "None has asked for a policy yet." if not routers else "Those that were seen are silent."
    command = "TIDEMARK_FLEET_KEY=… TIDEMARK_CONTROL_URL=… python -m router"
    return Step("router", "A router is there", False, missing, command=command)


def _pool() -> Step:
    models = list(PoolModel.objects.select_related("pool").order_by("name")[:4])
    if models:
        return Step(
            "pool", "A pool serves a model", True, ", ".join(f"{row.name} on {row.pool.slug}" for row in models)
        )
    return Step(
        "pool", "A pool serves a model", False, "A pool names the models that its workers serve.", "/pools/add/",
        "Make a pool",
    )  # fmt: skip


def _worker(workers: Sequence[WorkerRow]) -> Step:
    label, health = "A worker answers", Counter(row.health for row in workers)
    if health["ok"]:
        return Step("worker", label, True, f"{health['ok']} of {len(workers)}", "/workers/", "See workers")
    if workers:
        words = "None answers its polls" if health["down"] or health["stale"] else "None was polled yet"
        return Step("worker", label, False, f"{words}.", f"/workers/{workers[0].worker_id}/", "See its live test")
    return Step("worker", label, False, "Add one by its URL; it is tested at once.", "/workers/add/", "Add a worker")


def _tenant() -> Step:
    label = "A tenant has a key"
    active = ApiKey.objects.filter(status=ApiKey.KeyStatus.ACTIVE, namespace__status=Status.ACTIVE)
    key = active.select_related("namespace__tenant").order_by("id").first()
    if key is not None:
        return Step(
            "tenant", label, True, key.namespace.namespace_id, f"/tenants/{key.namespace.tenant.slug}/", "Open it"
        )
    return Step(
        "tenant", label, False, "With a namespace, which is a cache of its own, and a key that leads into it.",
        "/onboarding/", "Onboard a tenant",
    )  # fmt: skip


def _answered() -> tuple[bool, bool]:
    """Whether any request was seen, and whether any hit."""
    rows = RequestTotal.objects.filter(width_s=_HOUR_S)
    return rows.filter(requests__gt=0).exists(), rows.filter(hit_tokens__gt=0).exists()


def _request(seen: bool) -> Step:
    label = "A request was answered"
    if seen:
        return Step("request", label, True, "seen by a router", "/requests/", "See requests")
    return Step("request", label, False, "Send one with the key; the tenant's page has the command for it.")


def _hit(seen: bool, requests: bool) -> Step:
    label = "A prompt was served from cache"
    if seen:
        return Step("hit", label, True, "caching pays", "/", "Open the fleet")
    again = "Send the same long prompt twice: its whole blocks are found the second time."
    return Step("hit", label, False, again if requests else "Comes with the second request of a long prompt.")


def first_steps(scope: Scope, *, now: datetime, namespace: str) -> Steps:
    """Of one namespace that was just made: first request, first hit."""
    tenant, _, slug = namespace.partition("/")
    row = CacheNamespace.objects.filter(tenant__slug=tenant, slug=slug).first()
    rows = RequestRollup.objects.filter(tenant=tenant, namespace=namespace, width_s=_HOUR_S)
    sums = rows.aggregate(requests=Sum("requests"), hits=Sum("hit_tokens"))
    requests, hits = sums["requests"] or 0, sums["hits"] or 0
    served = rollout(now)
    on_version = f"{served.routers_on_version} of {served.routers_total} routers serve it"
    return Steps(
        [
            Step("made", "Made", row is not None, namespace),
            Step(
                "served", "Routers know it", served.is_complete, on_version if served.routers_total else "no router yet"
            ),
            Step("request", "First request", requests > 0, f"{requests} so far" if requests else "waiting for it …"),
            Step("hit", "First hit", hits > 0, f"{hits} tokens from cache" if hits else _no_hit(requests)),
        ]
    )


def _no_hit(requests: int) -> str:
    return "send the same long prompt again …" if requests else "comes with the second request of a long prompt"

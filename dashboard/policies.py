"""Watermark policies and their roll-out, as the dashboard shows them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

from django.db.models import Q

from controlplane.fleet.models import WorkerPool
from controlplane.namespaces.models import CacheNamespace
from controlplane.policies.models import PolicyRevision, RoutingPolicy, WatermarkPolicy
from controlplane.policies.revisions import history
from controlplane.rollouts.selectors import Progress, recent_rollouts
from controlplane.snapshots import selectors as snapshots

WATERMARK = PolicyRevision.Kind.WATERMARK
HISTORY_SHOWN = 8
SCOPES_MAX = 500
"""Offered in the form's choice; others are reached by their address."""


@dataclass(frozen=True, slots=True)
class PolicyRow:
    scope_id: str
    path: str
    policy: WatermarkPolicy


def path_of(scope_id: str) -> str:
    """Page of a scope: `pool:demo` → `/policies/pool/demo/`."""
    return f"/policies/{quote(scope_id.replace(':', '/', 1), safe='/')}/"


def routing_path(scope_id: str) -> str:
    """Page of a scope's routing policy: `pool:demo` → `/policies/routing/pool/demo/`."""
    return f"/policies/routing/{quote(scope_id.replace(':', '/', 1), safe='/')}/"


def rows() -> list[PolicyRow]:
    """Every stored policy, widest scope first. One query."""
    order = {"global": 0, "pool": 1, "namespace": 2}
    stored = WatermarkPolicy.objects.select_related("pool", "namespace__tenant")
    return [
        PolicyRow(scope_id=policy.scope_id, path=path_of(policy.scope_id), policy=policy)
        for policy in sorted(stored, key=lambda policy: (order[policy.scope], policy.scope_id))
    ]


def own_and_global(scope_id: str) -> tuple[WatermarkPolicy | None, WatermarkPolicy | None]:
    """The scope's own watermark and the global one. One query."""
    kind, _, name = scope_id.partition(":")
    tenant, _, slug = name.partition("/")
    own = {
        "pool": Q(pool__slug=name),
        "namespace": Q(namespace__tenant__slug=tenant, namespace__slug=slug),
    }.get(kind, Q(scope="global"))
    found = WatermarkPolicy.objects.select_related("pool", "namespace__tenant").filter(own | Q(scope="global"))
    by_scope = {policy.scope_id: policy for policy in found}
    return by_scope.get(scope_id), by_scope.get("global")


def pool_names() -> list[str]:
    return list(WorkerPool.objects.values_list("slug", flat=True)[:SCOPES_MAX])


def scope_exists(scope_id: str) -> bool:
    """Whether `global`, the pool of `pool:<slug>` or the namespace of `namespace:<tenant>/<slug>` is there."""
    kind, _, name = scope_id.partition(":")
    tenant, _, slug = name.partition("/")
    if kind == "pool":
        return WorkerPool.objects.filter(slug=name).exists()
    if kind == "namespace":
        return CacheNamespace.objects.filter(tenant__slug=tenant, slug=slug).exists()
    return scope_id == "global"


def meaning(policy: WatermarkPolicy) -> str:
    """The policy in one sentence."""
    dwell = f", at most one change in {policy.dwell_s:g} s" if policy.dwell_s else ""
    until = f" Until {policy.expires_at:%Y-%m-%d %H:%M} UTC." if policy.expires_at else ""
    return (
        f"A worker takes no new prefixes at {policy.high * 100:g} % KV use or more, "
        f"and takes them again at {policy.low * 100:g} % or less{dwell}.{until}"
    )


@dataclass(frozen=True, slots=True)
class Changed:
    """A revision with what it changed of the one in force before."""

    revision: PolicyRevision
    changes: list[tuple[str, Any, Any]]
    """Field, before, after; None = not set."""


def changed_rows(kind: str, scope_id: str) -> list[Changed]:
    """The latest revisions of a scope, newest first. One query."""
    rows = list(history(kind, scope_id).order_by("-number")[: HISTORY_SHOWN + 1])
    return [Changed(row, _changes(rows[at + 1 :], row)) for at, row in enumerate(rows[:HISTORY_SHOWN])]


def _changes(earlier: list[PolicyRevision], row: PolicyRevision) -> list[tuple[str, Any, Any]]:
    before = next((each for each in earlier if each.origin != PolicyRevision.Origin.CANDIDATE), None)
    old, new = (before.values if before else None) or {}, row.values or {}
    names = [*new, *(name for name in old if name not in new)]
    return [(name, old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)]


@dataclass(frozen=True, slots=True)
class RoutingRow:
    scope_id: str
    path: str
    policy: RoutingPolicy


def routing_rows() -> list[RoutingRow]:
    """Every stored routing policy, pools first. One query."""
    found = RoutingPolicy.objects.select_related("pool", "namespace__tenant")
    listed = sorted(found, key=lambda policy: (policy.scope != "pool", policy.scope_id))
    return [RoutingRow(policy.scope_id, routing_path(policy.scope_id), policy) for policy in listed]


def rollouts(now: datetime) -> list[Progress]:
    """Staged roll-outs under way and the latest that ended."""
    return recent_rollouts(now=now)


def rollout(now: datetime) -> snapshots.Rollout:
    """Which router serves which version."""
    return snapshots.rollout(now=now)

"""Watermark policies and their roll-out, as the dashboard shows them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote

from controlplane.fleet.models import WorkerPool
from controlplane.namespaces.models import CacheNamespace
from controlplane.policies.models import WatermarkPolicy
from controlplane.snapshots import selectors as snapshots

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


def rows() -> list[PolicyRow]:
    """Every stored policy, widest scope first. One query."""
    order = {"global": 0, "pool": 1, "namespace": 2}
    stored = WatermarkPolicy.objects.select_related("pool", "namespace__tenant")
    return [
        PolicyRow(scope_id=policy.scope_id, path=path_of(policy.scope_id), policy=policy)
        for policy in sorted(stored, key=lambda policy: (order[policy.scope], policy.scope_id))
    ]


def scopes_without_policy() -> list[str]:
    """Pools and namespaces for which the wider policy holds. Two queries."""
    pools = WorkerPool.objects.filter(watermark_policy=None).values_list("slug", flat=True)[:SCOPES_MAX]
    namespaces = CacheNamespace.objects.filter(watermark_policy=None).select_related("tenant")[:SCOPES_MAX]
    return [f"pool:{slug}" for slug in pools] + [f"namespace:{row.namespace_id}" for row in namespaces]


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
    return (
        f"A worker takes no new prefixes at {policy.high * 100:g} % KV use or more, "
        f"and takes them again at {policy.low * 100:g} % or less{dwell}."
    )


def rollout(now: datetime) -> snapshots.Rollout:
    """Which router serves which version."""
    return snapshots.rollout(now=now)

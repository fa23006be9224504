"""Watermark policies and their roll-out, as the dashboard shows them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from controlplane.policies.models import WatermarkPolicy
from controlplane.snapshots import selectors as snapshots


@dataclass(frozen=True, slots=True)
class PolicyRow:
    scope_id: str
    path: str
    policy: WatermarkPolicy


def path_of(scope_id: str) -> str:
    """Page of a scope: `pool:demo` → `/policies/pool/demo/`."""
    return f"/policies/{scope_id.replace(':', '/')}/"


def rows() -> list[PolicyRow]:
    """Every stored policy, widest scope first. One query."""
    order = {"global": 0, "pool": 1, "namespace": 2}
    stored = WatermarkPolicy.objects.select_related("pool", "namespace__tenant")
    return [
        PolicyRow(scope_id=policy.scope_id, path=path_of(policy.scope_id), policy=policy)
        for policy in sorted(stored, key=lambda policy: (order[policy.scope], policy.scope_id))
    ]


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

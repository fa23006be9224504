"""Which policy is set at a scope, and which watermark holds where."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from controlplane.policies.models import PolicyRevision, WatermarkPolicy
from controlplane.policies.rows import find_row, stored
from router.contract.snapshot import Watermark


def find_policy(scope: str) -> WatermarkPolicy | None:
    """The watermark set for exactly `global`, `pool:<slug>` or `namespace:<tenant>/<slug>`."""
    row = find_row(PolicyRevision.Kind.WATERMARK, scope)
    assert row is None or isinstance(row, WatermarkPolicy)
    return row


def effective_watermark(*, pool: str, namespace: str | None = None) -> Watermark:
    """The narrowest policy that exists; `source` names it, `default` when not even a global one is stored."""
    scopes = [f"namespace:{namespace}"] if namespace else []
    for scope in (*scopes, f"pool:{pool}", "global"):
        policy = find_policy(scope)
        if policy is not None:
            return watermark_of(policy)
    return Watermark()


def pool_watermarks(pools: Iterable[str]) -> dict[str, Watermark]:
    """The watermark of each pool: its own, else the global one. One query."""
    rows = stored(PolicyRevision.Kind.WATERMARK).exclude(scope=WatermarkPolicy.Scope.NAMESPACE)
    own = {policy.scope_id: watermark_of(policy) for policy in rows}
    everywhere = own.get("global", Watermark())
    return {slug: own.get(f"pool:{slug}", everywhere) for slug in pools}


def watermark_of(policy: WatermarkPolicy) -> Watermark:
    return Watermark(low=policy.low, high=policy.high, dwell_s=policy.dwell_s, source=policy.scope_id)


def watermark_from(values: Mapping[str, Any], scope: str) -> Watermark:
    """Of a revision's values."""
    return Watermark(low=values["low"], high=values["high"], dwell_s=values["dwell_s"], source=scope)

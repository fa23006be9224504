"""Which watermark holds where, and why."""

from __future__ import annotations

from django.db.models import Q

from controlplane.policies.models import WatermarkPolicy
from router.contract.snapshot import Watermark

_RELATED = ("pool", "namespace__tenant")


def find_policy(scope: str) -> WatermarkPolicy | None:
    """The policy set for exactly `global`, `pool:<slug>` or `namespace:<tenant>/<slug>`."""
    kind, _, name = scope.partition(":")
    tenant, _, slug = name.partition("/")
    wanted = {
        "global": Q(scope="global") if not name else None,
        "pool": Q(scope="pool", pool__slug=name),
        "namespace": Q(scope="namespace", namespace__tenant__slug=tenant, namespace__slug=slug),
    }.get(kind)
    return WatermarkPolicy.objects.select_related(*_RELATED).filter(wanted).first() if wanted else None


def effective_watermark(*, pool: str, namespace: str | None = None) -> Watermark:
    """The narrowest policy that exists; `source` names it, `default` when not even a global one is stored."""
    scopes = [f"namespace:{namespace}"] if namespace else []
    for scope in (*scopes, f"pool:{pool}", "global"):
        policy = find_policy(scope)
        if policy is not None:
            return watermark_of(policy)
    return Watermark()


def watermark_of(policy: WatermarkPolicy) -> Watermark:
    return Watermark(low=policy.low, high=policy.high, dwell_s=policy.dwell_s, source=policy.scope_id)

"""The row of a scope's policy, of either kind: found, made, read and filled in one way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db.models import Q, QuerySet

from controlplane.errors import Invalid, NotFound
from controlplane.fleet.models import WorkerPool
from controlplane.namespaces.models import CacheNamespace
from controlplane.policies.models import PolicyRevision, RoutingPolicy, WatermarkPolicy
from controlplane.policies.routing_values import checked_routing
from controlplane.policies.watermarks import checked_watermark

Kind = PolicyRevision.Kind
PolicyRow = WatermarkPolicy | RoutingPolicy
Values = dict[str, Any]
"""Field → value, as JSON keeps them."""
_RELATED = ("pool", "namespace__tenant")


def checked_values(kind: str, scope: str, values: Mapping[str, Any]) -> Values:
    """Raises Invalid with the fields' errors."""
    if kind == Kind.ROUTING:
        return checked_routing(scope, values)
    known = {"low", "high", "dwell_s"}
    unknown = sorted(set(values) - known)
    if unknown:
        raise Invalid.field(unknown[0], f"There is no field {unknown[0]}.")
    mark = checked_watermark(low=values.get("low"), high=values.get("high"), dwell_s=values.get("dwell_s", 0.0))
    return {"low": mark.low, "high": mark.high, "dwell_s": mark.dwell_s}


def stored(kind: str) -> QuerySet[Any]:  # Any: either kind of row
    return (RoutingPolicy if kind == Kind.ROUTING else WatermarkPolicy).objects.select_related(*_RELATED)


def find_row(kind: str, scope: str) -> PolicyRow | None:
    """The policy set for exactly `global`, `pool:<slug>` or `namespace:<tenant>/<slug>`."""
    scope_kind, _, name = scope.partition(":")
    tenant, _, slug = name.partition("/")
    wanted = {
        "global": Q(scope="global") if not name else None,
        "pool": Q(scope="pool", pool__slug=name),
        "namespace": Q(scope="namespace", namespace__tenant__slug=tenant, namespace__slug=slug),
    }.get(scope_kind)
    row: PolicyRow | None = stored(kind).filter(wanted).first() if wanted else None
    return row


def new_row(kind: str, scope: str) -> PolicyRow:
    """An unsaved row for `scope`. Raises NotFound when the pool or namespace does not exist, Invalid for no scope."""
    model = RoutingPolicy if kind == Kind.ROUTING else WatermarkPolicy
    scope_kind, _, name = scope.partition(":")
    if scope == "global" and kind == Kind.WATERMARK:
        return WatermarkPolicy(scope=WatermarkPolicy.Scope.GLOBAL)
    if scope_kind == "pool":
        pool = WorkerPool.objects.filter(slug=name).first()
        if pool is None:
            raise NotFound(f"There is no pool {name!r}.")
        return model(scope="pool", pool=pool)
    if scope_kind == "namespace":
        tenant, _, slug = name.partition("/")
        namespace = CacheNamespace.objects.select_related("tenant").filter(tenant__slug=tenant, slug=slug).first()
        if namespace is None:
            raise NotFound(f"There is no namespace {name!r}.")
        return model(scope="namespace", namespace=namespace)
    raise Invalid.field("scope", "Scope must be global, pool:<pool> or namespace:<tenant>/<namespace>.")


def scope_exists(kind: str, scope: str) -> bool:
    """Whether a policy of this kind could be set there."""
    try:
        new_row(kind, scope)
    except (NotFound, Invalid):
        return False
    return True


def values_of(row: PolicyRow) -> Values:
    if isinstance(row, RoutingPolicy):
        return dict(row.values)
    return {"low": row.low, "high": row.high, "dwell_s": row.dwell_s}


def fill(row: PolicyRow, values: Values) -> None:
    if isinstance(row, RoutingPolicy):
        row.values = values
    else:
        row.low, row.high, row.dwell_s = values["low"], values["high"], values["dwell_s"]


def tenant_of(scope: str) -> str:
    """Slug of the tenant whose namespace `scope` is; "" for scopes of the fleet."""
    kind, _, name = scope.partition(":")
    return name.partition("/")[0] if kind == "namespace" else ""

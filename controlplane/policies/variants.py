"""Rows → what holds for all (`standing` values) and what holds for some, or for some time (variants of the snapshot).

An override's row compiles to the revision that stands behind it and a variant with its end; a roll-out leaves the
scope's row alone and adds a variant with its share. Variants are ordered from the widest scope to the narrowest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from controlplane.policies.models import PolicyRevision, Rollout, RoutingPolicy
from controlplane.policies.rows import PolicyRow, Values, stored, values_of
from controlplane.policies.selectors import watermark_from
from router.contract.ids import NamespaceId, PoolId
from router.contract.snapshot import NamespaceValues, PoolValues, Variant, Watermark

Kind = PolicyRevision.Kind
_READ = ("scope", "revision", "expires_at", "standing", "pool__slug", "namespace__slug", "namespace__tenant__slug")
"""Fields of either kind of row: compilation reads every policy of the fleet."""
_WIDTH = {"global": 0, "pool": 1, "namespace": 2}


@dataclass(frozen=True, slots=True)
class Standing:
    """Values that hold for all routers and without an end, by scope."""

    watermarks: dict[str, Watermark] = field(default_factory=dict)
    routing: dict[str, Values] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Passing:
    """Values of one scope that hold on some routers or until some time."""

    id: str
    kind: str
    scope: str
    values: Values
    share: float = 1.0
    until: float | None = None
    """Unix seconds."""


def read_policies() -> tuple[Standing, list[Passing]]:
    """At most four queries."""
    rows: list[PolicyRow] = [
        *stored(Kind.WATERMARK).only("low", "high", "dwell_s", *_READ).order_by(),
        *stored(Kind.ROUTING).only("values", *_READ).order_by(),
    ]
    overrides = [row for row in rows if row.expires_at is not None]
    behind = _behind(overrides)
    standing = Standing()
    for row in rows:
        kind = kind_of(row)
        values = behind.get((kind, row.scope_id)) if row.expires_at is not None else values_of(row)
        if values is not None:
            _keep(standing, kind, row.scope_id, values)
    passing = [_override(row) for row in overrides] + [_rollout(row) for row in _running()]
    return standing, sorted(passing, key=lambda item: (_WIDTH[item.scope.partition(":")[0]], item.id))


def variants_of(passing: Iterable[Passing], standing: Standing, *, pools: Iterable[PoolId]) -> tuple[Variant, ...]:
    """`pools`: every pool of the fleet; a global watermark reaches those without one of their own."""
    unset = [pool for pool in pools if f"pool:{pool}" not in standing.watermarks]
    return tuple(_variant(item, unset) for item in passing)


def kind_of(row: PolicyRow) -> str:
    return Kind.ROUTING if isinstance(row, RoutingPolicy) else Kind.WATERMARK


def _variant(item: Passing, unset: list[PoolId]) -> Variant:
    scope, _, name = item.scope.partition(":")
    pools: dict[PoolId, PoolValues] = {}
    namespaces: dict[NamespaceId, NamespaceValues] = {}
    mark = watermark_from(item.values, item.scope) if item.kind == Kind.WATERMARK else None
    if scope == "namespace":
        values = NamespaceValues(watermark=mark) if mark else NamespaceValues(**item.values)
        namespaces[NamespaceId(name)] = values
    elif scope == "pool":
        pools[PoolId(name)] = PoolValues(watermark=mark) if mark else PoolValues(**item.values)
    else:
        pools = {pool: PoolValues(watermark=mark) for pool in unset}
    return Variant(item.id, share=item.share, until=item.until, pools=pools, namespaces=namespaces)


def _override(row: PolicyRow) -> Passing:
    assert row.expires_at is not None
    kind = kind_of(row)
    variant_id = f"override-{kind}-{row.scope_id}-{row.revision}"
    return Passing(variant_id, kind, row.scope_id, values_of(row), until=row.expires_at.timestamp())


def _rollout(row: Rollout) -> Passing:
    return Passing(row.variant_id, row.kind, row.scope, dict(row.values), share=row.share)


def _running() -> list[Rollout]:
    return list(Rollout.objects.filter(state=Rollout.State.RUNNING).order_by("id"))


def _keep(standing: Standing, kind: str, scope: str, values: Values) -> None:
    if kind == Kind.WATERMARK:
        standing.watermarks[scope] = watermark_from(values, scope)
    else:
        standing.routing[scope] = values


def _behind(overrides: Iterable[PolicyRow]) -> Mapping[tuple[str, str], Values | None]:
    """Values of the revisions that stand behind overrides, by kind and scope."""
    wanted = {(kind_of(row), row.scope_id): row.standing for row in overrides if row.standing is not None}
    if not wanted:
        return {}
    rows = PolicyRevision.objects.filter(scope__in={scope for _, scope in wanted}, number__in=set(wanted.values()))
    return {
        (row.kind, row.scope): row.values for row in rows.order_by() if wanted.get((row.kind, row.scope)) == row.number
    }

"""Tenants and namespaces as the dashboard shows them: who they are, what they used, how far a budget reaches."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Q, QuerySet

from controlplane.namespaces.models import ApiKey, CacheNamespace
from controlplane.telemetry.tenant_use import NO_USE, Use, use_by_tenant
from controlplane.telemetry.windows import Scope
from controlplane.tenants.models import Status, Tenant
from dashboard.columns import Column, in_order

KEY_OWNER = "namespace__tenant__slug"
STATUSES = tuple(Status.values)

COLUMNS = (
    Column("tenant", "Tenant"),
    Column("status", "Status"),
    Column("namespaces", "Namespaces", numeric=True),
    Column("keys", "Active keys", numeric=True),
    Column("requests", "Requests", numeric=True),
    Column("hit", "Hit-token share", numeric=True),
    Column("goodput", "Goodput in SLO", numeric=True),
    Column("budget", "Prefill budget", numeric=True),
)


@dataclass(frozen=True, slots=True)
class TenantRow:
    slug: str
    name: str
    status: str
    namespaces: int
    keys: int
    """Active ones."""
    budget: float | None
    """Uncached prompt tokens a second on each router; None = no limit."""
    use: Use


_VALUES = {
    "tenant": lambda row: row.slug,
    "status": lambda row: row.status,
    "namespaces": lambda row: row.namespaces,
    "keys": lambda row: row.keys,
    "requests": lambda row: row.use.requests,
    "hit": lambda row: row.use.hit_share,
    "goodput": lambda row: row.use.goodput_share,
    "budget": lambda row: row.budget,
}


def tenant_rows(
    mine: Collection[str] | None, scope: Scope, *, now: datetime, q: str = "", only: str = "", sort: str = ""
) -> list[TenantRow]:
    """The tenants of these slugs, None = all, found by text and status and in order. Four queries."""
    found = _found(mine, q, only)
    of_mine = {} if mine is None else {"tenant__slug__in": mine}
    namespaces = _counts(CacheNamespace.objects.filter(**of_mine), "tenant__slug")
    active = ApiKey.objects.filter(status=ApiKey.KeyStatus.ACTIVE)
    keys = _counts(active.filter(**{f"namespace__{name}": slugs for name, slugs in of_mine.items()}), KEY_OWNER)
    uses = use_by_tenant(scope, now=now, tenants=mine)
    rows = [
        TenantRow(slug, name, status, namespaces.get(slug, 0), keys.get(slug, 0), budget, uses.get(slug, NO_USE))
        for slug, name, status, budget in found.values_list("slug", "name", "status", "prefill_tokens_per_s")
    ]
    return in_order(rows, sort, _VALUES)


def _found(mine: Collection[str] | None, q: str, only: str) -> QuerySet[Tenant]:
    """By a part of id or name, by a namespace's id, or by a key as a log or a person names it."""
    rows = Tenant.objects.order_by("slug")
    if mine is not None:
        rows = rows.filter(slug__in=mine)
    if only in STATUSES:
        rows = rows.filter(status=only)
    if not q:
        return rows
    tenant, slash, namespace = q.lower().partition("/")
    if slash:
        owners = CacheNamespace.objects.filter(slug__startswith=namespace).values("tenant_id")
        return rows.filter(slug=tenant, pk__in=owners)
    key_owners = ApiKey.objects.filter(key_id=q.removeprefix("tm_").partition("_")[0]).values("namespace__tenant_id")
    of_namespace = CacheNamespace.objects.filter(slug=q.lower()).values("tenant_id")
    return rows.filter(Q(slug__icontains=q) | Q(name__icontains=q) | Q(pk__in=key_owners) | Q(pk__in=of_namespace))


def _counts(rows: QuerySet[CacheNamespace] | QuerySet[ApiKey], owner: str) -> dict[str, int]:
    return {row[owner]: row["n"] for row in rows.order_by().values(owner).annotate(n=Count("id"))}


@dataclass(frozen=True, slots=True)
class NamespaceRow:
    namespace: CacheNamespace
    keys: int
    """Active ones."""
    use: Use


def namespace_rows(tenant: Tenant, uses: Mapping[str, Use]) -> list[NamespaceRow]:
    """The tenant's namespaces by slug. One query."""
    active = Count("keys", filter=Q(keys__status=ApiKey.KeyStatus.ACTIVE))
    rows = tenant.namespaces.select_related("tenant", "trust_group").annotate(keys_active=active).order_by("slug")
    return [NamespaceRow(row, row.keys_active, uses.get(row.namespace_id, NO_USE)) for row in rows]

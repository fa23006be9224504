"""Placement rules to be shown and published."""

from __future__ import annotations

from datetime import datetime

from django.db.models import QuerySet

from controlplane.placements.models import PlacementRule
from router.contract.ids import NamespaceId, PoolId
from router.contract.snapshot import Placement


def placements(*, tenant: str = "") -> QuerySet[PlacementRule]:
    """Newest first; of one tenant, or ("") of all."""
    rows = PlacementRule.objects.select_related("namespace__tenant", "pool")
    return rows.filter(namespace__tenant__slug=tenant) if tenant else rows


def in_force(*, now: datetime, tenant: str = "") -> QuerySet[PlacementRule]:
    return placements(tenant=tenant).filter(ended_at=None, until__gt=now)


def published() -> tuple[Placement, ...]:
    """What a snapshot carries: the rules that have not ended, also those whose end no tick has written down yet."""
    rows = PlacementRule.objects.filter(ended_at=None).order_by("id")
    fields = ("namespace__tenant__slug", "namespace__slug", "pool__slug", "prefix", "homes", "until")
    return tuple(
        Placement(NamespaceId(f"{tenant}/{slug}"), PoolId(pool), prefix, homes, until.timestamp())
        for tenant, slug, pool, prefix, homes, until in rows.values_list(*fields)
    )

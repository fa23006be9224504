"""Which entries of the audit log are about a tenant: what its own people may read of it."""

from __future__ import annotations

from collections.abc import Collection

from django.db.models import Q

from controlplane.namespaces.models import ApiKey, CacheNamespace


def about(tenants: Collection[str]) -> Q:
    """Entries about these tenants, their namespaces, keys, templates, policies and members."""
    keys = ApiKey.objects.filter(namespace__tenant__slug__in=tenants).values("key_id")
    found = Q(object_type="tenant", object_id__in=tenants) | Q(object_type="key", object_id__in=keys)
    for slug in tenants:
        found |= Q(object_type__in=("namespace", "template", "what_if"), object_id__startswith=f"{slug}/")
        found |= Q(object_type__in=("watermark", "routing"), object_id__startswith=f"namespace:{slug}/")
        found |= Q(object_type="member", object_id__endswith=f"@{slug}")
    return found


def about_namespace(row: CacheNamespace) -> Q:
    """Entries about one namespace, its keys and its policies."""
    keys = row.keys.values("key_id")
    return (
        Q(object_type="namespace", object_id=row.namespace_id)
        | Q(object_type="key", object_id__in=keys)
        | Q(object_type__in=("watermark", "routing"), object_id=f"namespace:{row.namespace_id}")
    )

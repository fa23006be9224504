"""Which namespaces share cached prefixes, by cache domain."""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.namespaces.models import CacheNamespace

Isolation = CacheNamespace.Isolation


@dataclass(frozen=True, slots=True)
class Domain:
    kind: str
    """A value of `CacheNamespace.Isolation`, `private` excepted."""
    name: str
    """`acme/search` of a project, a group's slug, "" for public texts."""
    members: list[str]

    @property
    def label(self) -> str:
        return str(Isolation(self.kind).label)


def shared_domains() -> list[Domain]:
    """Domains that somebody is in, by kind and name. One query."""
    rows = CacheNamespace.objects.exclude(isolation=Isolation.PRIVATE).select_related("tenant", "trust_group")
    members: dict[tuple[str, str], list[str]] = {}
    for row in rows.order_by("tenant__slug", "slug"):
        members.setdefault((row.isolation, _name(row)), []).append(row.namespace_id)
    return [Domain(kind, name, those) for (kind, name), those in sorted(members.items())]


def _name(row: CacheNamespace) -> str:
    if row.isolation == Isolation.PROJECT:
        return f"{row.tenant.slug}/{row.project}"
    return row.trust_group.slug if row.trust_group is not None else ""

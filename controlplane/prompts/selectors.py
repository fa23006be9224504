"""Templates and versions by name or tenant, and the pool whose tokens they are counted in."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from django.db.models import Exists, OuterRef, Prefetch, Q, QuerySet, prefetch_related_objects

from controlplane.errors import NotFound
from controlplane.fleet.models import WorkerPool
from controlplane.prompts.models import PromptTemplate, PromptTemplateVersion
from controlplane.prompts.tokens import TokenCounter, counter_for

VERSION_MAX = 2**31 - 1
WORDS_MAX = 5
VERSIONS_SHOWN = 6


def find_template(template: str) -> PromptTemplate:
    """Of `<tenant>/<slug>`. Raises NotFound."""
    tenant, _, slug = template.partition("/")
    row = PromptTemplate.objects.select_related("tenant").filter(tenant__slug=tenant, slug=slug).first()
    if row is None:
        raise NotFound(f"There is no prompt template {template!r}.")
    return row


def find_version(template: str, version: int) -> PromptTemplateVersion:
    """Raises NotFound."""
    owner = find_template(template)
    row = owner.versions.filter(version=version).first() if version <= VERSION_MAX else None
    if row is None:
        raise NotFound(f"The prompt template {template} has no version {version}.")
    row.template = owner
    return row


def counter_of_pool(pool: str) -> TokenCounter:
    """By the pool's slug; "" = the estimate. Raises NotFound."""
    if not pool:
        return TokenCounter()
    row = WorkerPool.objects.filter(slug=pool).first()
    if row is None:
        raise NotFound(f"There is no pool {pool!r}.")
    return counter_for(row)


@dataclass(frozen=True, slots=True)
class TemplateRow:
    name: str
    tenant: str
    slug: str
    versions: list[PromptTemplateVersion]
    """Newest first, at most VERSIONS_SHOWN."""
    published: int | None
    """The newest published version."""


STATES = ("published", "draft", "none")
"""Templates with a published version, with a draft, and without any published one."""


def templates_of(tenants: Collection[str] | None, *, sought: str = "", state: str = "") -> QuerySet[PromptTemplate]:
    """Of these tenants, None = of all of them; by name. `sought`: part of tenant, slug or name; `state`: of STATES."""
    rows = PromptTemplate.objects.select_related("tenant").order_by("tenant__slug", "slug")
    if tenants is not None:
        rows = rows.filter(tenant__slug__in=tenants)
    for word in sought.replace("/", " ").split()[:WORDS_MAX]:
        rows = rows.filter(Q(tenant__slug__icontains=word) | Q(slug__icontains=word) | Q(name__icontains=word))
    versions = PromptTemplateVersion.objects.filter(template=OuterRef("pk"))
    if state == "none":
        return rows.exclude(Exists(versions.filter(status="published")))
    return rows.filter(Exists(versions.filter(status=state))) if state in STATES else rows


def with_versions(templates: Iterable[PromptTemplate]) -> list[TemplateRow]:
    """The rows of a page of templates. One query."""
    listed = list(templates)
    newest = PromptTemplateVersion.objects.order_by("-version").defer("segments")
    prefetch_related_objects(listed, Prefetch("versions", queryset=newest))
    return [_template_row(row) for row in listed]


def _template_row(row: PromptTemplate) -> TemplateRow:
    versions = list(row.versions.all())
    published = [each.version for each in versions if each.status == PromptTemplateVersion.VersionStatus.PUBLISHED]
    return TemplateRow(
        str(row), row.tenant.slug, row.slug, versions[:VERSIONS_SHOWN], max(published) if published else None
    )

"""Changes to prompt templates: draft, edit, publish, retire. A published version never changes."""

from __future__ import annotations

from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from controlplane.audit.services import record
from controlplane.errors import Conflict, Invalid, NotFound
from controlplane.prompts.models import PromptTemplate, PromptTemplateVersion
from controlplane.prompts.segments import Segment, digest_of, segment_errors
from controlplane.saving import expect_revision, save_checked
from controlplane.tenants.models import Tenant

VersionStatus = PromptTemplateVersion.VersionStatus
VERSIONS_MAX = 1000
"""Versions of one template, retired ones included: names in old rollups must stay resolvable."""


def create_template(*, actor: str, tenant: str, slug: str, name: str = "", request_id: str = "") -> PromptTemplate:
    with transaction.atomic():
        owner = Tenant.objects.filter(slug=tenant).first()
        if owner is None:
            raise NotFound(f"There is no tenant {tenant!r}.")
        template = PromptTemplate(tenant=owner, slug=slug, name=name)
        save_checked(template)
        record(
            actor=actor,
            action="template.create",
            object_type="template",
            object_id=str(template),
            before=None,
            after={"template": str(template), "name": name},
            affects_routing=False,
            request_id=request_id,
        )
    return template


def draft_version(*, actor: str, template: str, segments: list[Segment], request_id: str = "") -> PromptTemplateVersion:
    """The next version of `<tenant>/<slug>`, as a draft. Invalid names the offending segment."""
    _check(segments)
    with transaction.atomic():
        owner = _locked_template(template)
        last = owner.versions.aggregate(last=Max("version"))["last"] or 0
        if last >= VERSIONS_MAX:
            raise Conflict(f"The template has {VERSIONS_MAX} versions; begin another template.")
        row = PromptTemplateVersion(template=owner, version=last + 1, segments=segments)
        save_checked(row)
        _record(row, actor=actor, verb="draft", before=None, affects_routing=False, request_id=request_id)
    return row


def edit_draft(
    *,
    actor: str,
    template: str,
    version: int,
    segments: list[Segment],
    if_revision: int | None = None,
    request_id: str = "",
) -> PromptTemplateVersion:
    _check(segments)
    with transaction.atomic():
        row = _locked_version(template, version, if_revision, expected=VersionStatus.DRAFT)
        before = _facts(row)
        row.segments = segments
        row.revision += 1
        save_checked(row)
        _record(row, actor=actor, verb="edit", before=before, affects_routing=False, request_id=request_id)
    return row


def publish_version(
    *, actor: str, template: str, version: int, if_revision: int | None = None, request_id: str = ""
) -> PromptTemplateVersion:
    with transaction.atomic():
        row = _locked_version(template, version, if_revision, expected=VersionStatus.DRAFT)
        _check(row.segments)
        before = _facts(row)
        row.status = VersionStatus.PUBLISHED
        row.digest = digest_of(row.segments)
        row.published_at = timezone.now()
        row.revision += 1
        save_checked(row)
        _record(row, actor=actor, verb="publish", before=before, affects_routing=True, request_id=request_id)
    return row


def retire_version(
    *,
    actor: str,
    template: str,
    version: int,
    reason: str = "",
    if_revision: int | None = None,
    request_id: str = "",
) -> PromptTemplateVersion:
    """Routers no longer accept its name; its rollups keep it."""
    with transaction.atomic():
        row = _locked_version(template, version, if_revision, expected=VersionStatus.PUBLISHED)
        before = _facts(row)
        row.status = VersionStatus.RETIRED
        row.revision += 1
        save_checked(row)
        _record(
            row, actor=actor, verb="retire", before=before, affects_routing=True, reason=reason, request_id=request_id
        )
    return row


def _check(segments: object) -> None:
    errors = segment_errors(segments)
    if errors:
        raise Invalid(errors[0]["message"], errors=errors)


def _locked_template(template: str) -> PromptTemplate:
    tenant, _, slug = template.partition("/")
    rows = PromptTemplate.objects.select_related("tenant").select_for_update(of=("self",))
    row = rows.filter(tenant__slug=tenant, slug=slug).first()
    if row is None:
        raise NotFound(f"There is no prompt template {template!r}.")
    return row


def _locked_version(
    template: str, version: int, if_revision: int | None, *, expected: VersionStatus
) -> PromptTemplateVersion:
    owner = _locked_template(template)
    row = owner.versions.select_for_update().filter(version=version).first()
    if row is None:
        raise NotFound(f"The prompt template {template} has no version {version}.")
    expect_revision(row, if_revision)
    if row.status != expected:
        raise Conflict(f"Version {version} is {row.status}; this needs a {expected} one.")
    row.template = owner
    return row


def _facts(row: PromptTemplateVersion) -> dict[str, object]:
    """Without the segments' texts: prompts stay out of the audit log; the digest stands for them."""
    return {
        "version": row.version,
        "status": str(row.status),
        "segments": [{"kind": segment["kind"], "name": segment["name"]} for segment in row.segments],
        "digest": digest_of(row.segments),
        "revision": row.revision,
    }


def _record(
    row: PromptTemplateVersion,
    *,
    actor: str,
    verb: str,
    before: dict[str, object] | None,
    affects_routing: bool,
    reason: str = "",
    request_id: str = "",
) -> None:
    record(
        actor=actor,
        action=f"template.{verb}",
        object_type="template",
        object_id=f"{row.template}@{row.version}",
        before=before,
        after=_facts(row),
        affects_routing=affects_routing,
        reason=reason,
        request_id=request_id,
    )

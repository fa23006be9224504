"""Changes to prompt templates: draft, edit, publish, retire. A published version never changes."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from controlplane.audit.services import record
from controlplane.errors import Conflict, FieldError, Invalid, NotFound
from controlplane.fleet.findings import Observation, observe
from controlplane.fleet.models import Finding
from controlplane.prompts.goldens import check_versions, subject_of, tools_digest
from controlplane.prompts.lints import Lint, report_on
from controlplane.prompts.models import PromptTemplate, PromptTemplateVersion
from controlplane.prompts.segments import Segment, digest_of, segment_errors
from controlplane.prompts.tokens import TokenCounter
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
        record_version(row, actor=actor, verb="draft", before=None, affects_routing=False, request_id=request_id)
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
        row = locked_version(template, version, if_revision, expected=VersionStatus.DRAFT)
        before = _facts(row)
        row.segments = segments
        row.revision += 1
        save_checked(row)
        record_version(row, actor=actor, verb="edit", before=before, affects_routing=False, request_id=request_id)
    return row


def publish_version(
    *,
    actor: str,
    template: str,
    version: int,
    accept: Sequence[str] = (),
    reason: str = "",
    if_revision: int | None = None,
    request_id: str = "",
) -> PromptTemplateVersion:
    """Publish a draft. Its lints of severity error refuse it (Invalid, each at its segment) unless `accept` has their
    codes and `reason` says why; warnings are for the author to read. Keeps the tokens of its static part by pool."""
    with transaction.atomic():
        row = locked_version(template, version, if_revision, expected=VersionStatus.DRAFT)
        _check(row.segments)
        accepted = _accepted(report_on(row.segments, TokenCounter()).errors, accept, reason)
        before = _facts(row)
        row.status = VersionStatus.PUBLISHED
        row.digest = digest_of(row.segments)
        row.tools_digest = tools_digest(row.segments)
        row.accepted_lints = accepted
        row.published_at = timezone.now()
        row.revision += 1
        save_checked(row)
        _note_changed_tools(row)
        check_versions([row])
        record_version(
            row, actor=actor, verb="publish", before=before, affects_routing=True, reason=reason, request_id=request_id
        )
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
        row = locked_version(template, version, if_revision, expected=VersionStatus.PUBLISHED)
        before = _facts(row)
        row.status = VersionStatus.RETIRED
        row.revision += 1
        save_checked(row)
        record_version(
            row, actor=actor, verb="retire", before=before, affects_routing=True, reason=reason, request_id=request_id
        )
    return row


def _check(segments: object) -> None:
    errors = segment_errors(segments)
    if errors:
        raise Invalid(errors[0]["message"], errors=errors)


def _accepted(errors: Sequence[Lint], accept: Sequence[str], reason: str) -> list[str]:
    """Codes of the errors, all of them accepted. Raises Invalid."""
    open_ones = [lint for lint in errors if lint.code not in accept]
    if open_ones:
        faults = [
            FieldError(field=_field_of(lint), message=f"{lint.code}: {lint.message} {lint.fix}") for lint in open_ones
        ]
        raise Invalid(faults[0]["message"], errors=faults, code="lint")
    codes = sorted({lint.code for lint in errors})
    if codes and not reason.strip():
        raise Invalid.field("reason", f"Say why {', '.join(codes)} may stay.")
    return codes


def _field_of(lint: Lint) -> str:
    return "segments" if lint.segment is None else f"segments.{lint.segment}.text"


def _note_changed_tools(row: PromptTemplateVersion) -> None:
    """Other tools than the version before: everything behind them is computed anew for every conversation."""
    earlier = row.template.versions.exclude(pk=row.pk).exclude(status=VersionStatus.DRAFT).order_by("-version").first()
    if earlier is None or earlier.tools_digest == row.tools_digest:
        return
    message = f"Its tools differ from those of version {earlier.version}: what is cached behind them is of no use."
    observe([Observation("tool_schema_changed", subject_of(row), message, Finding.Severity.INFO)], at=timezone.now())


def _locked_template(template: str) -> PromptTemplate:
    tenant, _, slug = template.partition("/")
    rows = PromptTemplate.objects.select_related("tenant").select_for_update(of=("self",))
    row = rows.filter(tenant__slug=tenant, slug=slug).first()
    if row is None:
        raise NotFound(f"There is no prompt template {template!r}.")
    return row


def locked_version(
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
        "accepted_lints": list(row.accepted_lints),
        "public": row.is_public,
        "revision": row.revision,
    }


def record_version(
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

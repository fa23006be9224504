"""The allow-list of public texts (S3.11): a published version's static text that every tenant may share a cache for.

To allow one needs two persons; to withdraw it, one. Only what is wholly static can be allowed: a text with a
placeholder would carry what somebody filled in. User documents, sessions and tool results are never in a template.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.conf import settings
from django.db import transaction

from controlplane.approvals.models import ChangeRequest
from controlplane.approvals.registry import Kind, register_change
from controlplane.approvals.services import propose
from controlplane.errors import Conflict, Invalid, NotFound
from controlplane.prompts.models import PromptTemplateVersion
from controlplane.prompts.rendering import JOINT, assembled, names_in
from controlplane.prompts.segments import Segment
from controlplane.prompts.services import locked_version, record_version
from controlplane.saving import save_checked
from router.contract.public import ROLES, public_digest, public_key

PUBLIC = "template.public"
"""Kind of the change requests."""
ALLOWED_MAX = 1000
"""Texts in force: each router keeps two digests of each."""
TEXT_BYTES_MAX = 120 * 1024
"""Longer prompts are not read in the one way in which routers can tell that there is nothing else in them."""
VersionStatus = PromptTemplateVersion.VersionStatus


def propose_public(*, actor: str, template: str, version: int, reason: str, request_id: str = "") -> ChangeRequest:
    """Raises NotFound, Conflict or Invalid for what could not be applied."""
    return propose(
        actor=actor, kind=PUBLIC, subject=f"{template}@{version}", change={"version": version}, reason=reason,
        tenant=template.partition("/")[0], request_id=request_id,
    )  # fmt: skip


def withdraw_public(
    *,
    actor: str,
    template: str,
    version: int,
    reason: str = "",
    if_revision: int | None = None,
    request_id: str = "",
) -> PromptTemplateVersion:
    """At once. What is cached of it holds nobody's words but the template's."""
    with transaction.atomic():
        row = locked_version(template, version, if_revision, expected=VersionStatus.PUBLISHED)
        if not row.is_public:
            return row
        _set(row, False, actor=actor, reason=reason, request_id=request_id)
    return row


def check_public(subject: str, change: dict[str, Any]) -> None:
    template, _, version = subject.rpartition("@")
    tenant, _, slug = template.partition("/")
    rows = PromptTemplateVersion.objects.filter(template__tenant__slug=tenant, template__slug=slug)
    row = rows.filter(version=int(version)).first() if version.isdigit() else None
    if row is None:
        raise NotFound(f"There is no version {subject!r}.")
    _checked(row)


def apply_public(
    *, subject: str, change: dict[str, Any], actor: str, reason: str, request_id: str
) -> PromptTemplateVersion:
    """Inside the approval's transaction."""
    template, _, version = subject.rpartition("@")
    row = locked_version(template, int(version), None, expected=VersionStatus.PUBLISHED)
    _checked(row)
    _set(row, True, actor=actor, reason=reason, request_id=request_id)
    return row


def static_text(segments: Iterable[Segment]) -> str:
    """What a request must consist of, to the character: the static segments as they are rendered."""
    static = [segment for segment in segments if segment["kind"] == "static"]
    return JOINT.join(part.text for part in assembled(static, {}).parts)


def public_digests() -> tuple[str, ...]:
    """For the snapshot: of each text in force and each role, sorted. One query."""
    rows = PromptTemplateVersion.objects.filter(status=VersionStatus.PUBLISHED, is_public=True).order_by()
    key = public_key(settings.FLEET_KEY)
    texts = [static_text(segments).encode() for segments in rows.values_list("segments", flat=True)]
    return tuple(sorted({public_digest(key, role=role, text=text) for text in texts for role in ROLES}))


def _checked(row: PromptTemplateVersion) -> None:
    if row.status != VersionStatus.PUBLISHED:
        raise Conflict(f"Version {row.version} is {row.status}; only a published one never changes.")
    if row.is_public:
        raise Conflict("It is public already.")
    static = [segment for segment in row.segments if segment["kind"] == "static"]
    if names_in(static):
        raise Invalid.field("version", "Its static text has placeholders: what fills them would be shared.")
    if not static_text(static).strip():
        raise Invalid.field("version", "It has no static text.")
    if len(static_text(row.segments).encode()) > TEXT_BYTES_MAX:
        raise Invalid.field("version", f"Its static text has more than {TEXT_BYTES_MAX:,} bytes.")
    if PromptTemplateVersion.objects.filter(is_public=True, status=VersionStatus.PUBLISHED).count() >= ALLOWED_MAX:
        raise Conflict(f"At most {ALLOWED_MAX} texts are public.")


def _set(row: PromptTemplateVersion, public: bool, *, actor: str, reason: str, request_id: str) -> None:
    row.is_public = public
    row.revision += 1
    save_checked(row)
    record_version(
        row, actor=actor, verb="make_public" if public else "withdraw_public", before={"public": not public},
        affects_routing=True, reason=reason, request_id=request_id,
    )  # fmt: skip


def register() -> None:
    register_change(Kind(PUBLIC, apply_public, check_public))

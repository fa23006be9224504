"""Which namespaces share cached prefixes (S1.6, S3.11). To share more needs two persons; to share nothing needs one.

    propose_sharing  → a change request; another person's approval applies it
    make_private     → at once: stopping it in an emergency must not wait for anybody
    dissolve_group   → at once, for all its members

Whoever leaves leaves nothing behind that the others can hit: routers settle a domain's salt from its members.
"""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from controlplane.approvals.models import ChangeRequest
from controlplane.approvals.registry import Kind, register_change
from controlplane.approvals.services import propose
from controlplane.audit.services import record
from controlplane.errors import Conflict, Invalid, NotFound
from controlplane.namespaces.models import CacheNamespace, TrustGroup, new_nonce
from controlplane.namespaces.services import locked_namespace, namespace_facts, record_namespace
from controlplane.saving import expect_revision, save_checked
from controlplane.tenants.models import Status, slug_validator

Isolation = CacheNamespace.Isolation
SHARING = "namespace.sharing"
"""Kind of the change requests."""
MEMBERS_MAX = 1000
"""Namespaces of one domain: routers settle its salt from all of them."""


def propose_sharing(
    *,
    actor: str,
    namespace: str,
    isolation: str,
    project: str = "",
    trust_group: str = "",
    reason: str,
    request_id: str = "",
) -> ChangeRequest:
    """Raises Invalid, NotFound, or Conflict for what could not be applied or is pending already."""
    change = {"isolation": isolation, "project": project, "trust_group": trust_group}
    return propose(
        actor=actor, kind=SHARING, subject=namespace, change=change, reason=reason,
        tenant=namespace.partition("/")[0], request_id=request_id,
    )  # fmt: skip


def make_private(
    *, actor: str, namespace: str, reason: str = "", if_revision: int | None = None, request_id: str = ""
) -> CacheNamespace:
    """It gets a generation of its own: what it cached while it shared cannot be reached from there either."""
    with transaction.atomic():
        row = locked_namespace(namespace, if_revision)
        if row.isolation == Isolation.PRIVATE:
            return row
        _change(row, Isolation.PRIVATE, "", None, actor=actor, reason=reason, request_id=request_id)
    return row


def create_group(*, actor: str, slug: str, name: str = "", request_id: str = "") -> TrustGroup:
    """Empty, so nothing is shared by it."""
    with transaction.atomic():
        group = TrustGroup(slug=slug, name=name)
        save_checked(group)
        _record_group(group, actor=actor, verb="create", before=None, request_id=request_id)
    return group


def dissolve_group(
    slug: str, *, actor: str, reason: str = "", if_revision: int | None = None, request_id: str = ""
) -> TrustGroup:
    """Makes its members private and ends it; a dissolved group stays as it is."""
    with transaction.atomic():
        group = TrustGroup.objects.select_for_update().filter(slug=slug).first()
        if group is None:
            raise NotFound(f"There is no trust group {slug!r}.")
        expect_revision(group, if_revision)
        if group.dissolved_at is not None:
            return group
        before = _group_facts(group)
        for member in CacheNamespace.objects.filter(trust_group=group).select_related("tenant"):
            make_private(actor=actor, namespace=member.namespace_id, reason=reason, request_id=request_id)
        group.dissolved_at = timezone.now()
        group.revision += 1
        save_checked(group)
        _record_group(group, actor=actor, verb="dissolve", before=before, reason=reason, request_id=request_id)
    return group


def check_sharing(subject: str, change: dict[str, Any]) -> None:
    """What could never be applied is refused before anybody is asked."""
    tenant, _, slug = subject.partition("/")
    row = CacheNamespace.objects.select_related("tenant", "trust_group").filter(tenant__slug=tenant, slug=slug).first()
    if row is None:
        raise NotFound(f"There is no namespace {subject!r}.")
    _checked(row, change)


def apply_sharing(*, subject: str, change: dict[str, Any], actor: str, reason: str, request_id: str) -> CacheNamespace:
    """Inside the approval's transaction."""
    row = locked_namespace(subject)
    isolation, project, group = _checked(row, change)
    _change(row, isolation, project, group, actor=actor, reason=reason, request_id=request_id)
    return row


def _checked(row: CacheNamespace, change: dict[str, Any]) -> tuple[str, str, TrustGroup | None]:
    """(isolation, project, trust group). Raises Invalid or Conflict."""
    isolation, project, named = change.get("isolation"), change.get("project", ""), change.get("trust_group", "")
    if isolation not in (Isolation.PROJECT, Isolation.TRUST_GROUP, Isolation.SHARED_PUBLIC):
        raise Invalid.field("isolation", "Name what to share: project, trust_group or shared_public.")
    if bool(project) != (isolation == Isolation.PROJECT):
        raise Invalid.field("project", "Name the project for isolation `project`, and for it alone.")
    if bool(named) != (isolation == Isolation.TRUST_GROUP):
        raise Invalid.field("trust_group", "Name the trust group for isolation `trust_group`, and for it alone.")
    if row.status == Status.REVOKED or row.tenant.status == Status.REVOKED:
        raise Conflict("The namespace is revoked.")
    group = _open_group(named) if named else None
    _check_slug(project)
    _check_room(row, project, group)
    if (row.isolation, row.project, row.trust_group) == (isolation, project, group):
        raise Conflict("It shares just so already.")
    return isolation, project, group


def _check_slug(project: str) -> None:
    try:
        if project:
            slug_validator(project)
    except ValidationError as error:
        raise Invalid.field("project", error.messages[0]) from None


def _open_group(slug: str) -> TrustGroup:
    group = TrustGroup.objects.filter(slug=slug, dissolved_at=None).first()
    if group is None:
        raise Invalid.field("trust_group", f"There is no trust group {slug!r}, or it is dissolved.")
    return group


def _check_room(row: CacheNamespace, project: str, group: TrustGroup | None) -> None:
    members = CacheNamespace.objects.exclude(pk=row.pk)
    if group is not None:
        count = members.filter(trust_group=group).count()
    else:
        count = members.filter(tenant=row.tenant, project=project).count() if project else 0
    if count >= MEMBERS_MAX:
        raise Conflict(f"At most {MEMBERS_MAX} namespaces share one cache.")


def _change(
    row: CacheNamespace,
    isolation: str,
    project: str,
    group: TrustGroup | None,
    *,
    actor: str,
    reason: str,
    request_id: str,
) -> None:
    """Joining, leaving and moving begin another generation, of it and so of every domain that it is or was in."""
    before = namespace_facts(row)
    left, row.isolation, row.project, row.trust_group = row.trust_group, isolation, project, group
    row.generation += 1
    row.generation_nonce, row.generation_at = new_nonce(), timezone.now()
    row.revision += 1
    save_checked(row)
    for each in (left, group):
        if each is not None:
            _begin_generation(each)
    verb = "private" if isolation == Isolation.PRIVATE else "share"
    record_namespace(row, actor=actor, verb=verb, before=before, reason=reason, request_id=request_id)


def _begin_generation(group: TrustGroup) -> None:
    group.generation += 1
    group.nonce, group.generation_at = new_nonce(), timezone.now()
    group.save(update_fields=["generation", "nonce", "generation_at", "updated_at"])


def _group_facts(group: TrustGroup) -> dict[str, object]:
    """Without the nonce."""
    dissolved = group.dissolved_at.isoformat() if group.dissolved_at else None
    return {"slug": group.slug, "name": group.name, "generation": group.generation, "dissolved_at": dissolved}


def _record_group(
    group: TrustGroup,
    *,
    actor: str,
    verb: str,
    before: dict[str, object] | None,
    reason: str = "",
    request_id: str = "",
) -> None:
    record(
        actor=actor, action=f"trust_group.{verb}", object_type="trust_group", object_id=group.slug, before=before,
        after=_group_facts(group), affects_routing=True, reason=reason, request_id=request_id,
    )  # fmt: skip


def register() -> None:
    register_change(Kind(SHARING, apply_sharing, check_sharing))

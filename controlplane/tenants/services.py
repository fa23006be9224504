"""Changes to tenants. Each is one transaction with one audit entry."""

from __future__ import annotations

from django.db import transaction

from controlplane.audit.services import record
from controlplane.errors import Conflict, Invalid, NotFound
from controlplane.saving import expect_revision, save_checked
from controlplane.tenants.models import Status, Tenant


def create_tenant(*, actor: str, slug: str, name: str, request_id: str = "") -> Tenant:
    with transaction.atomic():
        tenant = Tenant(slug=slug, name=name)
        save_checked(tenant)
        _record(tenant, actor=actor, verb="create", before=None, request_id=request_id)
    return tenant


def rename_tenant(
    *, actor: str, tenant: str, name: str, if_revision: int | None = None, request_id: str = ""
) -> Tenant:
    with transaction.atomic():
        row = _locked(tenant, if_revision)
        before = _facts(row)
        row.name = name
        row.revision += 1
        save_checked(row)
        # The name is for operators' eyes; no router knows it.
        _record(row, actor=actor, verb="update", before=before, affects_routing=False, request_id=request_id)
    return row


def set_tenant_status(
    *,
    actor: str,
    tenant: str,
    status: str,
    reason: str = "",
    if_revision: int | None = None,
    request_id: str = "",
) -> Tenant:
    """Suspend, resume or revoke; revoked is final (Conflict). The status that it has already changes nothing."""
    with transaction.atomic():
        row = _locked(tenant, if_revision)
        if row.status == status:
            return row
        check_status_change(row.status, status, noun="tenant")
        before = _facts(row)
        row.status = status
        row.revision += 1
        save_checked(row)
        _record(
            row, actor=actor, verb=STATUS_VERBS[Status(status)], before=before, reason=reason, request_id=request_id
        )
    return row


STATUS_VERBS = {Status.ACTIVE: "resume", Status.SUSPENDED: "suspend", Status.REVOKED: "revoke"}
"""Status → verb of the audit action; `suspend` and `revoke` raise the snapshot's epoch."""


def check_status_change(current: str, wanted: str, *, noun: str) -> None:
    if wanted not in Status.values:
        raise Invalid.field("status", f"Status must be one of: {', '.join(Status.values)}.")
    if current == Status.REVOKED:
        raise Conflict(f"A revoked {noun} stays revoked. Create another one.")


def _locked(slug: str, if_revision: int | None) -> Tenant:
    row = Tenant.objects.select_for_update().filter(slug=slug).first()
    if row is None:
        raise NotFound(f"There is no tenant {slug!r}.")
    expect_revision(row, if_revision)
    return row


def _facts(tenant: Tenant) -> dict[str, object]:
    return {"slug": tenant.slug, "name": tenant.name, "status": str(tenant.status), "revision": tenant.revision}


def _record(
    tenant: Tenant,
    *,
    actor: str,
    verb: str,
    before: dict[str, object] | None,
    affects_routing: bool = True,
    reason: str = "",
    request_id: str = "",
) -> None:
    record(
        actor=actor,
        action=f"tenant.{verb}",
        object_type="tenant",
        object_id=tenant.slug,
        before=before,
        after=_facts(tenant),
        affects_routing=affects_routing,
        reason=reason,
        request_id=request_id,
    )

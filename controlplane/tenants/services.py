"""Changes to tenants. Each is one transaction with one audit entry."""

from __future__ import annotations

from typing import TypedDict, Unpack

from django.db import transaction

from controlplane.audit.models import AuditEntry
from controlplane.audit.services import record
from controlplane.errors import Conflict, Invalid, NotFound
from controlplane.revocations.services import revoke
from controlplane.saving import expect_revision, save_checked
from controlplane.tenants.models import Status, Tenant


class TenantSettings(TypedDict, total=False):
    """What may be set at creation and changed afterwards; an absent key leaves the value as it is."""

    name: str
    prefill_tokens_per_s: float | None
    """None = no limit; it takes the burst away too."""
    prefill_burst_tokens: int | None


def create_tenant(*, actor: str, slug: str, request_id: str = "", **settings: Unpack[TenantSettings]) -> Tenant:
    with transaction.atomic():
        tenant = Tenant(slug=slug)
        _apply(tenant, settings)
        save_checked(tenant)
        _record(tenant, actor=actor, verb="create", before=None, request_id=request_id)
    return tenant


def update_tenant(
    *,
    actor: str,
    tenant: str,
    if_revision: int | None = None,
    request_id: str = "",
    **settings: Unpack[TenantSettings],
) -> Tenant:
    with transaction.atomic():
        row = _locked(tenant, if_revision)
        before = _facts(row)
        _apply(row, settings)
        row.revision += 1
        save_checked(row)
        # The name is for operators' eyes; no router knows it.
        routed = _budget(_facts(row)) != _budget(before)
        _record(row, actor=actor, verb="update", before=before, affects_routing=routed, request_id=request_id)
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
        entry = _record(
            row, actor=actor, verb=STATUS_VERBS[Status(status)], before=before, reason=reason, request_id=request_id
        )
        if status == Status.REVOKED:
            serving = row.namespaces.exclude(on_stale="deny").exclude(status=Status.REVOKED)
            revoke(entry, kind="tenant", subject=row.slug, tenant=row.slug, denies_when_stale=not serving.exists())
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


def _apply(row: Tenant, settings: TenantSettings) -> None:
    for field, value in settings.items():
        setattr(row, field, value)
    if "prefill_burst_tokens" not in settings and row.prefill_tokens_per_s is None:
        row.prefill_burst_tokens = None
    if row.prefill_burst_tokens is not None and row.prefill_tokens_per_s is None:
        raise Invalid.field("prefill_burst_tokens", "A burst needs prefill_tokens_per_s: it is saved up at that rate.")


def _facts(tenant: Tenant) -> dict[str, object]:
    return {
        "slug": tenant.slug,
        "name": tenant.name,
        "status": str(tenant.status),
        "prefill_tokens_per_s": tenant.prefill_tokens_per_s,
        "prefill_burst_tokens": tenant.prefill_burst_tokens,
        "revision": tenant.revision,
    }


def _budget(facts: dict[str, object]) -> tuple[object, object]:
    return facts["prefill_tokens_per_s"], facts["prefill_burst_tokens"]


def _record(
    tenant: Tenant,
    *,
    actor: str,
    verb: str,
    before: dict[str, object] | None,
    affects_routing: bool = True,
    reason: str = "",
    request_id: str = "",
) -> AuditEntry:
    return record(
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

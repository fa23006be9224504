"""Changes to cache namespaces. Each is one transaction with one audit entry; keys are in `key_services`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict, Unpack

from django.db import transaction
from django.utils import timezone

from controlplane.audit.models import AuditEntry
from controlplane.audit.services import record
from controlplane.errors import Conflict, Invalid, NotFound
from controlplane.namespaces.models import CacheNamespace, new_nonce
from controlplane.revocations.services import revoke
from controlplane.saving import expect_revision, save_checked
from controlplane.tenants.models import Status, Tenant
from controlplane.tenants.services import STATUS_VERBS, check_status_change

MODEL_NAMES_MAX = 200
MODEL_NAME_LENGTH_MAX = 200


class NamespaceSettings(TypedDict, total=False):
    """What may be set at creation and changed afterwards; an absent key leaves the value as it is."""

    name: str
    on_stale: str
    unknown_fields: str
    model_names: Sequence[str]
    ttft_slo_ms: float | None
    shed_over_slo: bool
    priority: int


def create_namespace(
    *, actor: str, tenant: str, slug: str, request_id: str = "", **settings: Unpack[NamespaceSettings]
) -> CacheNamespace:
    with transaction.atomic():
        owner = Tenant.objects.select_for_update().filter(slug=tenant).first()
        if owner is None:
            raise NotFound(f"There is no tenant {tenant!r}.")
        if owner.status == Status.REVOKED:
            raise Conflict("The tenant is revoked.")
        row = CacheNamespace(tenant=owner, slug=slug)
        _apply(row, settings)
        save_checked(row)
        record_namespace(row, actor=actor, verb="create", before=None, request_id=request_id)
    return row


def update_namespace(
    *,
    actor: str,
    namespace: str,
    if_revision: int | None = None,
    request_id: str = "",
    **settings: Unpack[NamespaceSettings],
) -> CacheNamespace:
    with transaction.atomic():
        row = locked_namespace(namespace, if_revision)
        before = namespace_facts(row)
        _apply(row, settings)
        row.revision += 1
        save_checked(row)
        record_namespace(row, actor=actor, verb="update", before=before, request_id=request_id)
    return row


def set_namespace_status(
    *,
    actor: str,
    namespace: str,
    status: str,
    reason: str = "",
    if_revision: int | None = None,
    request_id: str = "",
) -> CacheNamespace:
    """Suspend, resume or revoke. Revoking is final and retires the generation; the same status changes nothing."""
    with transaction.atomic():
        row = locked_namespace(namespace, if_revision)
        if row.status == status:
            return row
        check_status_change(row.status, status, noun="namespace")
        before = namespace_facts(row)
        row.status = status
        retired = row.generation
        if status == Status.REVOKED:
            _begin_generation(row)
        row.revision += 1
        save_checked(row)
        entry = record_namespace(
            row, actor=actor, verb=STATUS_VERBS[Status(status)], before=before, reason=reason, request_id=request_id
        )
        if status == Status.REVOKED:
            revoke(
                entry,
                kind="namespace",
                subject=row.namespace_id,
                tenant=row.tenant.slug,
                retired=retired,
                denies_when_stale=row.on_stale == CacheNamespace.OnStale.DENY,
            )
    return row


def rotate_generation(
    *, actor: str, namespace: str, reason: str = "", if_revision: int | None = None, request_id: str = ""
) -> CacheNamespace:
    """A fresh nonce, hence a fresh salt: what is cached under the old one cannot be reached and ages out."""
    with transaction.atomic():
        row = locked_namespace(namespace, if_revision)
        if row.status == Status.REVOKED:
            raise Conflict("The namespace is revoked.")
        before = namespace_facts(row)
        _begin_generation(row)
        row.revision += 1
        save_checked(row)
        record_namespace(row, actor=actor, verb="rotate", before=before, reason=reason, request_id=request_id)
    return row


def locked_namespace(namespace: str, if_revision: int | None = None) -> CacheNamespace:
    """The row of `<tenant>/<slug>`, locked until the transaction ends. Raises NotFound or Stale."""
    tenant, _, slug = namespace.partition("/")
    rows = CacheNamespace.objects.select_related("tenant", "trust_group").select_for_update(of=("self",))
    row = rows.filter(tenant__slug=tenant, slug=slug).first()
    if row is None:
        raise NotFound(f"There is no namespace {namespace!r}.")
    expect_revision(row, if_revision)
    return row


def _apply(row: CacheNamespace, settings: NamespaceSettings) -> None:
    for field, value in settings.items():
        setattr(row, field, _model_names(value) if field == "model_names" else value)


def _model_names(value: object) -> list[str]:
    names = list(value) if isinstance(value, list | tuple) else []
    fine = [name for name in names if isinstance(name, str) and 0 < len(name) <= MODEL_NAME_LENGTH_MAX]
    if not isinstance(value, list | tuple) or len(fine) != len(names):
        raise Invalid.field("model_names", f"Model names are a list of texts of 1–{MODEL_NAME_LENGTH_MAX} characters.")
    if len(names) > MODEL_NAMES_MAX:
        raise Invalid.field("model_names", f"At most {MODEL_NAMES_MAX} model names; none means every model.")
    return sorted(set(fine))


def _begin_generation(row: CacheNamespace) -> None:
    row.generation += 1
    row.generation_nonce = new_nonce()
    row.generation_at = timezone.now()


def namespace_facts(row: CacheNamespace) -> dict[str, object]:
    """Without the nonce: who holds the fleet key could make the salt from it."""
    return {
        "namespace": row.namespace_id,
        "name": row.name,
        "status": str(row.status),
        "generation": row.generation,
        "isolation": str(row.isolation),
        "project": row.project,
        "trust_group": row.trust_group.slug if row.trust_group is not None else "",
        "on_stale": str(row.on_stale),
        "unknown_fields": str(row.unknown_fields),
        "model_names": list(row.model_names),
        "ttft_slo_ms": row.ttft_slo_ms,
        "shed_over_slo": row.shed_over_slo,
        "priority": row.priority,
        "revision": row.revision,
    }


def record_namespace(
    row: CacheNamespace,
    *,
    actor: str,
    verb: str,
    before: dict[str, object] | None,
    reason: str = "",
    request_id: str = "",
) -> AuditEntry:
    return record(
        actor=actor,
        action=f"namespace.{verb}",
        object_type="namespace",
        object_id=row.namespace_id,
        before=before,
        after=namespace_facts(row),
        affects_routing=True,
        reason=reason,
        request_id=request_id,
    )

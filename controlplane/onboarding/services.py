"""Onboarding: a tenant with its namespace, key, limits and watermark in one transaction, by the services of each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from controlplane.approvals.models import ChangeRequest
from controlplane.errors import ControlError
from controlplane.namespaces.key_services import IssuedKey, issue_key
from controlplane.namespaces.models import CacheNamespace
from controlplane.namespaces.services import NamespaceSettings, create_namespace
from controlplane.namespaces.sharing_services import propose_sharing
from controlplane.policies.models import WatermarkPolicy
from controlplane.policies.services import set_watermark
from controlplane.policies.watermarks import WatermarkValues
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Capability
from controlplane.tenants.services import TenantSettings, create_tenant

NEEDED = (
    Capability.TENANTS_CHANGE,
    Capability.LIMITS_CHANGE,
    Capability.NAMESPACES_CHANGE,
    Capability.KEYS_CHANGE,
    Capability.POLICIES_CHANGE,
)
"""In the whole fleet: it is several changes in one, and asks for what each of them asks for."""


@dataclass(frozen=True, slots=True)
class SharingWish:
    """Whom the namespace is to share its cache with, once another person has approved it."""

    isolation: str
    project: str = ""
    trust_group: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Onboarded:
    tenant: Tenant
    namespace: CacheNamespace
    issued: IssuedKey
    watermark: WatermarkPolicy | None
    sharing: ChangeRequest | None = None
    """Waiting for another person; until then the namespace is private."""


def onboard_tenant(
    *,
    actor: str,
    tenant: str,
    tenant_settings: TenantSettings,
    namespace: str,
    namespace_settings: NamespaceSettings,
    key_name: str,
    key_expires_at: datetime | None = None,
    watermark: WatermarkValues | None = None,
    sharing: SharingWish | None = None,
    request_id: str = "",
    dry_run: bool = False,
) -> Onboarded:
    """All of it or, when any part is refused, nothing; the error's `part` names which. `namespace` is the slug inside
    the tenant. One audit entry for each part, all with the same request id.

    `dry_run` does all of it and takes it back: the answer says what would be, and its key opens nothing.
    """
    namespace_id = f"{tenant}/{namespace}"
    with transaction.atomic():
        with _part("tenant"):
            owner = create_tenant(actor=actor, slug=tenant, request_id=request_id, **tenant_settings)
        with _part("namespace"):
            row = create_namespace(
                actor=actor, tenant=tenant, slug=namespace, request_id=request_id, **namespace_settings
            )
        with _part("key"):
            issued = issue_key(
                actor=actor, namespace=namespace_id, name=key_name, expires_at=key_expires_at, request_id=request_id
            )
        with _part("watermark"):
            policy = _watermark(actor, namespace_id, watermark, request_id) if watermark else None
        with _part("sharing"):
            proposed = _sharing(actor, namespace_id, sharing, request_id) if sharing else None
        if dry_run:
            transaction.set_rollback(True)
    return Onboarded(tenant=owner, namespace=row, issued=issued, watermark=policy, sharing=proposed)


@contextmanager
def _part(name: str) -> Iterator[None]:
    try:
        yield
    except ControlError as error:
        error.part = name
        raise


def _sharing(actor: str, namespace_id: str, wish: SharingWish, request_id: str) -> ChangeRequest:
    return propose_sharing(
        actor=actor, namespace=namespace_id, isolation=wish.isolation, project=wish.project,
        trust_group=wish.trust_group, reason=wish.reason, request_id=request_id,
    )  # fmt: skip


def _watermark(actor: str, namespace_id: str, values: WatermarkValues, request_id: str) -> WatermarkPolicy:
    return set_watermark(
        actor=actor,
        scope=f"namespace:{namespace_id}",
        low=values.low,
        high=values.high,
        dwell_s=values.dwell_s,
        if_revision=0,
        request_id=request_id,
    )

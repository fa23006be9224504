"""Issuing and revoking API keys. The secret is returned once and never stored (S13)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from controlplane.audit.services import record
from controlplane.errors import Conflict, Invalid, NotFound
from controlplane.namespaces.models import ApiKey
from controlplane.namespaces.services import locked_namespace
from controlplane.saving import save_checked
from controlplane.tenants.models import Status
from router.contract.secrets import new_api_key

KEYS_PER_NAMESPACE_MAX = 1000
"""Keys that are not revoked. They make up most of a snapshot, at about 250 bytes each."""


@dataclass(frozen=True, slots=True)
class IssuedKey:
    key: ApiKey
    text: str
    """The whole key, `tm_<key id>_<secret>`: shown to its owner now and never again."""

    def __repr__(self) -> str:
        return f"IssuedKey({self.key})"


def issue_key(
    *, actor: str, namespace: str, name: str, expires_at: datetime | None = None, request_id: str = ""
) -> IssuedKey:
    """A key for `<tenant>/<slug>`; it expires never when `expires_at` is None. Conflict when that is revoked."""
    if expires_at is not None and expires_at <= timezone.now():
        raise Invalid.field("expires_at", "The expiry must lie in the future.")
    with transaction.atomic():
        row = locked_namespace(namespace)
        if Status.REVOKED in (row.status, row.tenant.status):
            raise Conflict("The namespace or its tenant is revoked.")
        if row.keys.filter(status=ApiKey.KeyStatus.ACTIVE).count() >= KEYS_PER_NAMESPACE_MAX:
            raise Conflict(f"The namespace has {KEYS_PER_NAMESPACE_MAX} keys; revoke one first.")
        key_id, secret, text = new_api_key()
        secret_hash = settings.FLEET_KEY.api_key_hash(key_id, secret)
        key = ApiKey(
            namespace=row, key_id=key_id, secret_hash=secret_hash, name=name, expires_at=expires_at, created_by=actor
        )
        save_checked(key)
        _record(key, actor=actor, verb="issue", before=None, request_id=request_id)
    return IssuedKey(key, text)


def revoke_key(*, actor: str, key_id: str, reason: str = "", request_id: str = "") -> ApiKey:
    """Final. Revoking a revoked key changes nothing."""
    with transaction.atomic():
        rows = ApiKey.objects.select_related("namespace__tenant").select_for_update(of=("self",))
        key = rows.filter(key_id=key_id).first()
        if key is None:
            raise NotFound("There is no such key.")
        if key.status == ApiKey.KeyStatus.REVOKED:
            return key
        before = _facts(key)
        key.status = ApiKey.KeyStatus.REVOKED
        key.revoked_at = timezone.now()
        save_checked(key)
        _record(key, actor=actor, verb="revoke", before=before, reason=reason, request_id=request_id)
    return key


def _facts(key: ApiKey) -> dict[str, object]:
    return {
        "key_id": key.key_id,
        "namespace": key.namespace.namespace_id,
        "name": key.name,
        "status": str(key.status),
        "expires_at": key.expires_at.isoformat() if key.expires_at else None,
    }


def _record(
    key: ApiKey, *, actor: str, verb: str, before: dict[str, object] | None, reason: str = "", request_id: str = ""
) -> None:
    record(
        actor=actor,
        action=f"key.{verb}",
        object_type="key",
        object_id=key.key_id,
        before=before,
        after=_facts(key),
        affects_routing=True,
        reason=reason,
        request_id=request_id,
    )

"""Issuing, rotating and revoking API keys. The secret is returned once and never stored (S13)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from controlplane.audit.models import AuditEntry
from controlplane.audit.services import record
from controlplane.errors import Conflict, Invalid, NotFound
from controlplane.namespaces.models import ApiKey, CacheNamespace
from controlplane.namespaces.services import locked_namespace
from controlplane.revocations.services import revoke
from controlplane.saving import save_checked
from controlplane.tenants.models import Status
from router.contract.secrets import new_api_key

KEYS_PER_NAMESPACE_MAX = 1000
"""Keys that are not revoked. They make up most of a snapshot, at about 250 bytes each."""

OVERLAP_DEFAULT_S = 24 * 3600.0
"""Both keys work meanwhile: time to bring the successor to every client."""
OVERLAP_MAX_S = 90 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class IssuedKey:
    key: ApiKey
    text: str
    """The whole key, `tm_<key id>_<secret>`: shown to its owner now and never again."""

    def __repr__(self) -> str:
        return f"IssuedKey({self.key})"


def issue_key(
    *,
    actor: str,
    namespace: str,
    name: str,
    expires_at: datetime | None = None,
    scopes: Sequence[str] = (ApiKey.KeyScope.INFERENCE,),
    request_id: str = "",
) -> IssuedKey:
    """A key for `<tenant>/<slug>`; it expires never when `expires_at` is None. Conflict when that is revoked."""
    if expires_at is not None and expires_at <= timezone.now():
        raise Invalid.field("expires_at", "The expiry must lie in the future.")
    with transaction.atomic():
        issued = _issue(actor, locked_namespace(namespace), name, expires_at, _checked_scopes(scopes))
        _record(issued.key, actor=actor, verb="issue", before=None, request_id=request_id)
    return issued


def rotate_key(
    *, actor: str, key_id: str, overlap_s: float = OVERLAP_DEFAULT_S, reason: str = "", request_id: str = ""
) -> IssuedKey:
    """A successor with the same name, scopes and expiry; the key itself ends after `overlap_s`, or at once with 0.

    Raises NotFound, Invalid, or Conflict for a key that is revoked or has expired.
    """
    if not 0 <= overlap_s <= OVERLAP_MAX_S:
        raise Invalid.field("overlap_s", f"The overlap is 0 to {OVERLAP_MAX_S:.0f} seconds.")
    with transaction.atomic():
        key, now = _locked_key(key_id), timezone.now()
        if key.status == ApiKey.KeyStatus.REVOKED or (key.expires_at is not None and key.expires_at <= now):
            raise Conflict("The key is revoked or has expired. Issue another one.")
        # Its namespace is locked as for any other key, so that the limit holds.
        owner = locked_namespace(key.namespace.namespace_id)
        issued = _issue(actor, owner, key.name, key.expires_at, list(key.scopes))
        _record(issued.key, actor=actor, verb="issue", before=None, reason=reason, request_id=request_id)
        before, ends_at = _facts(key), now + timedelta(seconds=overlap_s)
        key.expires_at = ends_at if key.expires_at is None else min(key.expires_at, ends_at)
        save_checked(key)
        _record(
            key, actor=actor, verb="rotate", before=before, reason=reason, request_id=request_id,
            successor=issued.key.key_id,
        )  # fmt: skip
    return issued


def revoke_key(*, actor: str, key_id: str, reason: str = "", request_id: str = "") -> ApiKey:
    """Final. Revoking a revoked key changes nothing."""
    with transaction.atomic():
        key = _locked_key(key_id)
        if key.status == ApiKey.KeyStatus.REVOKED:
            return key
        before = _facts(key)
        key.status = ApiKey.KeyStatus.REVOKED
        key.revoked_at = timezone.now()
        save_checked(key)
        entry = _record(key, actor=actor, verb="revoke", before=before, reason=reason, request_id=request_id)
        revoke(
            entry,
            kind="key",
            subject=key.key_id,
            tenant=key.namespace.tenant.slug,
            denies_when_stale=key.namespace.on_stale == CacheNamespace.OnStale.DENY,
        )
    return key


def _issue(
    actor: str, namespace: CacheNamespace, name: str, expires_at: datetime | None, scopes: list[str]
) -> IssuedKey:
    if Status.REVOKED in (namespace.status, namespace.tenant.status):
        raise Conflict("The namespace or its tenant is revoked.")
    if namespace.keys.filter(status=ApiKey.KeyStatus.ACTIVE).count() >= KEYS_PER_NAMESPACE_MAX:
        raise Conflict(f"The namespace has {KEYS_PER_NAMESPACE_MAX} keys; revoke one first.")
    key_id, secret, text = new_api_key()
    key = ApiKey(
        namespace=namespace,
        key_id=key_id,
        secret_hash=settings.FLEET_KEY.api_key_hash(key_id, secret),
        name=name,
        expires_at=expires_at,
        scopes=scopes,
        created_by=actor,
    )
    save_checked(key)
    return IssuedKey(key, text)


def _locked_key(key_id: str) -> ApiKey:
    rows = ApiKey.objects.select_related("namespace__tenant").select_for_update(of=("self",))
    key = rows.filter(key_id=key_id).first()
    if key is None:
        raise NotFound("There is no such key.")
    return key


def _checked_scopes(scopes: Sequence[str]) -> list[str]:
    wanted = list(dict.fromkeys(scopes))
    if ApiKey.KeyScope.INFERENCE not in wanted or not set(wanted) <= set(ApiKey.KeyScope.values):
        raise Invalid.field("scopes", f"Scopes are `inference` and, beside it, any of {ApiKey.KeyScope.values[1:]}.")
    return sorted(str(scope) for scope in wanted)


def _facts(key: ApiKey) -> dict[str, object]:
    return {
        "key_id": key.key_id,
        "namespace": key.namespace.namespace_id,
        "name": key.name,
        "status": str(key.status),
        "expires_at": key.expires_at.isoformat() if key.expires_at else None,
        "scopes": list(key.scopes),
    }


def _record(
    key: ApiKey,
    *,
    actor: str,
    verb: str,
    before: dict[str, object] | None,
    reason: str = "",
    request_id: str = "",
    successor: str = "",
) -> AuditEntry:
    after = _facts(key)
    if successor:
        after["successor"] = successor
    return record(
        actor=actor,
        action=f"key.{verb}",
        object_type="key",
        object_id=key.key_id,
        before=before,
        after=after,
        affects_routing=True,
        reason=reason,
        request_id=request_id,
    )

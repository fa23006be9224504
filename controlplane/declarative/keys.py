"""API keys as documents, in exports with secrets alone: a file without keyed hashes cannot make one."""

from __future__ import annotations

from django.utils import timezone

from controlplane.declarative.documents import Spec
from controlplane.declarative.kind import LIST, OR_NONE, TEXT, Change, Field, Kind
from controlplane.declarative.restoring import moment, moment_text, restore
from controlplane.errors import Conflict
from controlplane.namespaces.key_services import revoke_key
from controlplane.namespaces.models import ApiKey
from controlplane.namespaces.services import locked_namespace
from controlplane.snapshots.compiler import ENDED_KEYS_KEPT

KEY_FIELDS = {
    "namespace": Field(TEXT, is_required=True),
    "name": Field(TEXT, is_required=True),
    "status": Field(TEXT, "active"),
    "expires_at": Field(TEXT + OR_NONE),
    "scopes": Field(LIST, ["inference"], is_set=True),
}


def _read() -> dict[str, Spec]:
    """Every key, ended ones too: a revoked key in a file is the same here, not a key to make."""
    return {
        row.key_id: {
            "namespace": row.namespace.namespace_id,
            "name": row.name,
            "status": str(row.status),
            "expires_at": moment_text(row.expires_at),
            "scopes": sorted(row.scopes),
        }
        for row in ApiKey.objects.select_related("namespace__tenant").order_by()
    }


def _create(name: str, wanted: Spec, change: Change) -> None:
    state = change.sealed_for("ApiKey", name)
    if state is None or state["namespace"] != wanted["namespace"]:
        raise Conflict("a key's secret exists nowhere but with its owner: issue it, or apply an export with secrets")
    key = ApiKey(
        namespace=locked_namespace(wanted["namespace"]),
        key_id=name,
        name=wanted["name"],
        expires_at=moment(wanted["expires_at"]),
        scopes=wanted["scopes"],
        created_by=state["created_by"],
        status=wanted["status"],
    )
    ended = moment(state["revoked_at"]) or (timezone.now() if wanted["status"] == "revoked" else None)
    restored = {"secret_hash": state["secret_hash"], "revoked_at": ended}
    restore(key, restored, object_type="key", object_id=name, change=change)


def _update(name: str, wanted: Spec, current: Spec, change: Change) -> None:
    if {**wanted, "status": ""} != {**current, "status": ""} or wanted["status"] != "revoked":
        raise Conflict("a key is not changed in place: rotate it, or issue another one")
    revoke_key(actor=change.actor, key_id=name, reason=change.reason)


def _remove(name: str, change: Change) -> None:
    revoke_key(actor=change.actor, key_id=name, reason=change.reason)


def _seal() -> dict[str, Spec]:
    """Of the keys that routers still know."""
    ended = timezone.now() - ENDED_KEYS_KEPT
    rows = ApiKey.objects.exclude(status="revoked", revoked_at__lt=ended).exclude(expires_at__lt=ended)
    return {
        row.key_id: {
            "namespace": row.namespace.namespace_id,
            "secret_hash": row.secret_hash,
            "created_by": row.created_by,
            "revoked_at": moment_text(row.revoked_at),
        }
        for row in rows.select_related("namespace__tenant").order_by()
    }


API_KEY = Kind(
    "ApiKey", "key", KEY_FIELDS, _read, _create, _update, _remove, is_gone=lambda spec: spec["status"] == "revoked",
    seal=_seal, only_with_secrets=True,
)  # fmt: skip

"""Tenants, trust groups and namespaces as documents."""

from __future__ import annotations

from typing import Any

from controlplane.declarative.documents import Spec
from controlplane.declarative.kind import FLAG, LIST, NUMBER, OR_NONE, TEXT, WHOLE, Change, Field, Kind
from controlplane.declarative.restoring import moment, moment_text, restore
from controlplane.errors import Conflict
from controlplane.namespaces.models import CacheNamespace, TrustGroup
from controlplane.namespaces.services import create_namespace, set_namespace_status, update_namespace
from controlplane.namespaces.sharing_services import create_group, dissolve_group, make_private
from controlplane.tenants.models import Status, Tenant
from controlplane.tenants.services import create_tenant, set_tenant_status, update_tenant

TENANT_FIELDS = {
    "name": Field(TEXT, is_required=True),
    "status": Field(TEXT, "active"),
    "prefill_tokens_per_s": Field(NUMBER + OR_NONE),
    "prefill_burst_tokens": Field(WHOLE + OR_NONE),
}
GROUP_FIELDS = {"name": Field(TEXT, ""), "dissolved": Field(FLAG, False)}
SETTINGS_FIELDS = {
    "name": Field(TEXT, ""),
    "on_stale": Field(TEXT, "serve"),
    "unknown_fields": Field(TEXT, "drop"),
    "model_names": Field(LIST, [], is_set=True),
    "ttft_slo_ms": Field(NUMBER + OR_NONE),
    "shed_over_slo": Field(FLAG, False),
    "priority": Field(WHOLE, 0),
}
SHARING_FIELDS = {
    "isolation": Field(TEXT, "private"),
    "project": Field(TEXT, ""),
    "trust_group": Field(TEXT, ""),
}
NEEDS_TWO = "what shares cached prefixes needs two persons: apply it private, then propose the sharing"


def _of(spec: Spec, names: Any) -> Spec:  # Any: a collection of field names
    return {name: spec[name] for name in names}


def _differs(wanted: Spec, current: Spec, names: Any) -> bool:
    return _of(wanted, names) != _of(current, names)


def _read_tenants() -> dict[str, Spec]:
    return {row.slug: _of_row(row, TENANT_FIELDS) for row in Tenant.objects.order_by()}


def _of_row(row: Any, fields: Any) -> Spec:
    """Choices as plain texts."""
    values = {name: getattr(row, name) for name in fields}
    return {name: str(value) if isinstance(value, str) else value for name, value in values.items()}


def _create_tenant(name: str, wanted: Spec, change: Change) -> None:
    create_tenant(actor=change.actor, slug=name, **_settings(wanted, TENANT_FIELDS))


def _update_tenant(name: str, wanted: Spec, current: Spec, change: Change) -> None:
    if _differs(wanted, current, TENANT_FIELDS.keys() - {"status"}):
        update_tenant(actor=change.actor, tenant=name, **_settings(wanted, TENANT_FIELDS))
    _tenant_status(name, wanted, change)


def _settings(wanted: Spec, fields: Any) -> Spec:
    return {name: wanted[name] for name in fields if name != "status"}


def _tenant_status(name: str, wanted: Spec, change: Change) -> None:
    set_tenant_status(actor=change.actor, tenant=name, status=wanted["status"], reason=change.reason)


def _remove_tenant(name: str, change: Change) -> None:
    set_tenant_status(actor=change.actor, tenant=name, status=Status.REVOKED, reason=change.reason)


def _read_groups() -> dict[str, Spec]:
    return {
        row.slug: {"name": row.name, "dissolved": row.dissolved_at is not None} for row in TrustGroup.objects.order_by()
    }


def _create_group(name: str, wanted: Spec, change: Change) -> None:
    create_group(actor=change.actor, slug=name, name=wanted["name"])


def _finish_group(name: str, wanted: Spec, change: Change) -> None:
    """Its generation after its members have joined: each of them would begin another."""
    if wanted["dissolved"]:
        dissolve_group(name, actor=change.actor, reason=change.reason)
    state = change.sealed_for("TrustGroup", name)
    if state is not None:
        row = TrustGroup.objects.get(slug=name)
        restore(row, _generation(state, "nonce"), object_type="trust_group", object_id=name, change=change)


def _update_group(name: str, wanted: Spec, current: Spec, change: Change) -> None:
    if wanted["name"] != current["name"] or (current["dissolved"] and not wanted["dissolved"]):
        raise Conflict("a trust group keeps its name, and stays dissolved")
    if wanted["dissolved"]:
        dissolve_group(name, actor=change.actor, reason=change.reason)


def _remove_group(name: str, change: Change) -> None:
    dissolve_group(name, actor=change.actor, reason=change.reason)


def _seal_groups() -> dict[str, Spec]:
    return {
        row.slug: {"nonce": row.nonce, "generation": row.generation, "generation_at": moment_text(row.generation_at)}
        for row in TrustGroup.objects.order_by()
    }


def _generation(state: Spec, nonce: str) -> Spec:
    return {
        nonce: state["nonce"],
        "generation": state["generation"],
        "generation_at": moment(state["generation_at"]),
    }


def _namespace_rows() -> Any:
    return CacheNamespace.objects.select_related("tenant", "trust_group").order_by()


def _read_namespaces() -> dict[str, Spec]:
    return {
        row.namespace_id: {
            **_of_row(row, (*SETTINGS_FIELDS, "status", "isolation", "project")),
            "trust_group": row.trust_group.slug if row.trust_group else "",
        }
        for row in _namespace_rows()
    }


def _create_namespace(name: str, wanted: Spec, change: Change) -> None:
    if wanted["isolation"] != "private" and not _was_agreed_on(name, wanted, change):
        raise Conflict(NEEDS_TWO)
    tenant, _, slug = name.partition("/")
    create_namespace(actor=change.actor, tenant=tenant, slug=slug, **_of(wanted, SETTINGS_FIELDS))


def _was_agreed_on(name: str, wanted: Spec, change: Change) -> bool:
    """Two persons agreed before the export; whom it then shared with must come from the same file, or be nobody."""
    state = change.sealed_for("Namespace", name)
    if state is None or _differs(wanted, state, SHARING_FIELDS):
        return False
    group = wanted["trust_group"]
    tenant = name.partition("/")[0]
    return ("Tenant", tenant) in change.created and (not group or ("TrustGroup", group) in change.created)


def _finish_namespace(name: str, wanted: Spec, change: Change) -> None:
    """Revoking begins a generation, so what is restored comes after it; the restored one was never the revoked one."""
    state = change.sealed_for("Namespace", name)
    set_namespace_status(actor=change.actor, namespace=name, status=wanted["status"], reason=change.reason)
    if state is None:
        return
    tenant, _, slug = name.partition("/")
    row = _namespace_rows().get(tenant__slug=tenant, slug=slug)
    group = TrustGroup.objects.get(slug=wanted["trust_group"]) if wanted["trust_group"] else None
    shared = {"isolation": wanted["isolation"], "project": wanted["project"], "trust_group": group}
    values = {**_generation(state, "generation_nonce"), **shared}
    restore(row, values, object_type="namespace", object_id=name, change=change)


def _update_namespace(name: str, wanted: Spec, current: Spec, change: Change) -> None:
    if _differs(wanted, current, SHARING_FIELDS):
        if wanted["isolation"] != "private":
            raise Conflict(NEEDS_TWO)
        make_private(actor=change.actor, namespace=name, reason=change.reason)
    if _differs(wanted, current, SETTINGS_FIELDS):
        update_namespace(actor=change.actor, namespace=name, **_of(wanted, SETTINGS_FIELDS))
    set_namespace_status(actor=change.actor, namespace=name, status=wanted["status"], reason=change.reason)


def _remove_namespace(name: str, change: Change) -> None:
    set_namespace_status(actor=change.actor, namespace=name, status=Status.REVOKED, reason=change.reason)


def _seal_namespaces() -> dict[str, Spec]:
    return {
        row.namespace_id: {
            "nonce": row.generation_nonce,
            "generation": row.generation,
            "generation_at": moment_text(row.generation_at),
            "isolation": str(row.isolation),
            "project": row.project,
            "trust_group": row.trust_group.slug if row.trust_group else "",
        }
        for row in _namespace_rows()
    }


def _is_revoked(spec: Spec) -> bool:
    return spec["status"] == "revoked"


TENANT = Kind(
    "Tenant", "tenant", TENANT_FIELDS, _read_tenants, _create_tenant, _update_tenant, _remove_tenant,
    is_gone=_is_revoked, finish=_tenant_status,
)  # fmt: skip
TRUST_GROUP = Kind(
    "TrustGroup", "trust_group", GROUP_FIELDS, _read_groups, _create_group, _update_group, _remove_group,
    is_gone=lambda spec: bool(spec["dissolved"]), finish=_finish_group, seal=_seal_groups,
)  # fmt: skip
NAMESPACE = Kind(
    "Namespace", "namespace", {**SETTINGS_FIELDS, "status": Field(TEXT, "active"), **SHARING_FIELDS},
    _read_namespaces, _create_namespace, _update_namespace, _remove_namespace, is_gone=_is_revoked,
    finish=_finish_namespace, seal=_seal_namespaces,
)  # fmt: skip

"""What may be done to tenants, namespaces and keys, and that each change is audited."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.conf import settings
from django.db import OperationalError
from django.utils import timezone

from controlplane.audit.models import AuditEntry
from controlplane.errors import Conflict, Invalid, NotFound, Stale
from controlplane.namespaces.key_services import issue_key, revoke_key
from controlplane.namespaces.models import ApiKey, CacheNamespace
from controlplane.namespaces.services import (
    create_namespace,
    rotate_generation,
    set_namespace_status,
    update_namespace,
)
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import create_tenant, set_tenant_status, update_tenant
from router.contract.secrets import split_api_key
from tests.control.conftest import ACTOR


def _actions() -> list[str]:
    return list(AuditEntry.objects.order_by("id").values_list("action", flat=True))


@pytest.mark.parametrize("slug", ["", "Acme", "a b", "-a", "a-", "a" * 49, "a/b", "ä", "a\u202eb"])
def test_it_refuses_an_odd_slug_by_field(db, slug: str) -> None:
    with pytest.raises(Invalid) as caught:
        create_tenant(actor=ACTOR, slug=slug, name="Acme")
    assert {error["field"] for error in caught.value.errors} == {"slug"}
    assert not Tenant.objects.exists() and not AuditEntry.objects.exists()


@pytest.mark.parametrize("name", ["", "x" * 201, "nul\x00", "lone \ud800 surrogate"])
def test_it_refuses_a_name_that_cannot_be_stored(db, name: str) -> None:
    with pytest.raises(Invalid) as caught:
        create_tenant(actor=ACTOR, slug="acme", name=name)
    assert [error["field"] for error in caught.value.errors] == ["name"]


def test_a_slug_in_use_is_a_conflict_at_its_field(support) -> None:
    with pytest.raises(Conflict) as caught:
        create_tenant(actor=ACTOR, slug="acme", name="Again")
    assert caught.value.errors[0]["field"] == "slug"
    with pytest.raises(Conflict):
        create_namespace(actor=ACTOR, tenant="acme", slug="support")


def test_a_name_change_is_audited_with_before_and_after_and_concerns_no_router(support) -> None:
    update_tenant(actor=ACTOR, tenant="acme", name="Acme Ltd", if_revision=1)
    entry = AuditEntry.objects.first()
    assert (entry.action, entry.before["name"], entry.after["name"]) == ("tenant.update", "Acme", "Acme Ltd")
    assert not entry.affects_routing


def test_a_change_whose_audit_cannot_be_written_is_refused(support, monkeypatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OperationalError("disk full")

    monkeypatch.setattr(AuditEntry, "save", full)
    for change in (
        lambda: create_tenant(actor=ACTOR, slug="other", name="Other"),
        lambda: update_tenant(actor=ACTOR, tenant="acme", name="Renamed"),
        lambda: set_namespace_status(actor=ACTOR, namespace="acme/support", status="revoked"),
        lambda: issue_key(actor=ACTOR, namespace="acme/support", name="k"),
    ):
        with pytest.raises(OperationalError):
            change()
    assert list(Tenant.objects.values_list("name", flat=True)) == ["Acme"]
    assert CacheNamespace.objects.get().status == "active"
    assert not ApiKey.objects.exists()


def test_an_older_revision_changes_nothing(support) -> None:
    update_tenant(actor=ACTOR, tenant="acme", name="First", if_revision=1)
    with pytest.raises(Stale) as caught:
        update_tenant(actor="user:bob", tenant="acme", name="Second", if_revision=1)
    assert caught.value.current == 2
    assert Tenant.objects.get().name == "First"


def test_a_revoked_tenant_stays_revoked(support) -> None:
    set_tenant_status(actor=ACTOR, tenant="acme", status="suspended")
    set_tenant_status(actor=ACTOR, tenant="acme", status="active")
    set_tenant_status(actor=ACTOR, tenant="acme", status="revoked")
    with pytest.raises(Conflict):
        set_tenant_status(actor=ACTOR, tenant="acme", status="active")
    with pytest.raises(Conflict):
        create_namespace(actor=ACTOR, tenant="acme", slug="other")
    assert _actions()[-3:] == ["tenant.suspend", "tenant.resume", "tenant.revoke"]


def test_the_same_status_again_changes_nothing(support) -> None:
    before = len(_actions())
    assert set_tenant_status(actor=ACTOR, tenant="acme", status="active").revision == 1
    assert len(_actions()) == before


def test_a_namespace_of_nobody_is_not_found(db) -> None:
    with pytest.raises(NotFound):
        create_namespace(actor=ACTOR, tenant="nobody", slug="x")
    with pytest.raises(NotFound):
        rotate_generation(actor=ACTOR, namespace="nobody/x")


def test_rotation_makes_another_salt(support) -> None:
    old_nonce = support.generation_nonce
    row = rotate_generation(actor=ACTOR, namespace="acme/support", reason="suspected leak")
    assert row.generation == 2 and row.generation_at > support.generation_at
    salts = {settings.FLEET_KEY.cache_salt("acme", "support", nonce) for nonce in (old_nonce, row.generation_nonce)}
    assert len(salts) == 2


def test_revoking_a_namespace_retires_its_generation(support) -> None:
    row = set_namespace_status(actor=ACTOR, namespace="acme/support", status="revoked")
    assert row.generation == 2 and row.generation_nonce != support.generation_nonce
    with pytest.raises(Conflict):
        rotate_generation(actor=ACTOR, namespace="acme/support")
    with pytest.raises(Conflict):
        issue_key(actor=ACTOR, namespace="acme/support", name="k")


def test_settings_of_a_namespace_are_checked(support) -> None:
    row = update_namespace(
        actor=ACTOR, namespace="acme/support", model_names=["b", "a", "b"], ttft_slo_ms=500.0, on_stale="deny"
    )
    assert (row.model_names, row.ttft_slo_ms, row.on_stale, row.revision) == (["a", "b"], 500.0, "deny", 2)
    for wrong in ({"on_stale": "maybe"}, {"model_names": "a"}, {"model_names": [1]}, {"ttft_slo_ms": -1.0}):
        with pytest.raises(Invalid):
            update_namespace(actor=ACTOR, namespace="acme/support", **wrong)
    assert CacheNamespace.objects.get().revision == 2


def test_the_audit_log_holds_no_nonce_and_no_key(support) -> None:
    issued = issue_key(actor=ACTOR, namespace="acme/support", name="k")
    _, secret = split_api_key(issued.text)
    rotated = rotate_generation(actor=ACTOR, namespace="acme/support")
    text = str(list(AuditEntry.objects.values()))
    for hidden in (secret, issued.key.secret_hash, support.generation_nonce, rotated.generation_nonce):
        assert hidden not in text
    assert secret not in repr(issued)


def test_an_issued_key_is_stored_as_its_keyed_hash(support) -> None:
    issued = issue_key(actor=ACTOR, namespace="acme/support", name="k")
    key_id, secret = split_api_key(issued.text)
    stored = ApiKey.objects.get()
    assert stored.key_id == key_id
    assert stored.secret_hash == settings.FLEET_KEY.api_key_hash(key_id, secret)
    assert secret not in str(ApiKey.objects.values().get())


def test_a_key_cannot_expire_in_the_past(support) -> None:
    with pytest.raises(Invalid):
        issue_key(actor=ACTOR, namespace="acme/support", name="k", expires_at=timezone.now() - timedelta(seconds=1))


def test_a_key_is_revoked_once(support) -> None:
    key = issue_key(actor=ACTOR, namespace="acme/support", name="k").key
    revoked_at = revoke_key(actor=ACTOR, key_id=key.key_id).revoked_at
    count = len(_actions())
    assert revoke_key(actor=ACTOR, key_id=key.key_id).revoked_at == revoked_at
    assert len(_actions()) == count
    with pytest.raises(NotFound):
        revoke_key(actor=ACTOR, key_id="0" * 12)

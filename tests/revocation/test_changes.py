"""Revoking a key, namespace, tenant or model: row, epoch, retired generation and audit entry in one transaction."""

from __future__ import annotations

from datetime import timedelta

import pytest
import time_machine
from django.db import transaction
from django.utils import timezone

from controlplane.audit.models import AuditEntry
from controlplane.errors import NotFound
from controlplane.fleet.models import PoolModel
from controlplane.fleet.services import revoke_model, update_pool
from controlplane.namespaces.key_services import issue_key, revoke_key
from controlplane.namespaces.models import CacheNamespace
from controlplane.namespaces.services import create_namespace, rotate_generation, set_namespace_status, update_namespace
from controlplane.revocations.models import FleetEpoch, Revocation
from controlplane.revocations.services import current_epoch
from controlplane.snapshots.compiler import ENDED_KEYS_KEPT, compile_snapshot
from controlplane.snapshots.services import publish_pending
from controlplane.tenants.services import set_tenant_status
from tests.control.conftest import ACTOR, no_valkey, pool, support  # noqa: F401 - fixtures

NAMESPACE = "acme/support"


@pytest.fixture
def key_id(support) -> str:  # noqa: F811
    return issue_key(actor=ACTOR, namespace=NAMESPACE, name="k").key.key_id


def _revoke(kind: str, key_id: str) -> str:
    """Returns the subject."""
    if kind == "key":
        revoke_key(actor=ACTOR, key_id=key_id, reason="leaked", request_id="r")
        return key_id
    if kind == "namespace":
        set_namespace_status(actor=ACTOR, namespace=NAMESPACE, status="revoked", reason="leaked", request_id="r")
        return NAMESPACE
    if kind == "tenant":
        set_tenant_status(actor=ACTOR, tenant="acme", status="revoked", reason="leaked", request_id="r")
        return "acme"
    revoke_model(actor=ACTOR, pool="llama", model="m", reason="leaked", request_id="r")
    return "llama:m"


KINDS = ("key", "namespace", "tenant", "model")


@pytest.mark.parametrize("kind", KINDS)
def test_each_leaves_a_row_with_an_epoch_beside_its_audit_entry(key_id: str, pool, kind: str) -> None:  # noqa: F811
    before = current_epoch()
    subject = _revoke(kind, key_id)
    row = Revocation.objects.get()
    entry = AuditEntry.objects.get(pk=row.audit_id)
    assert (row.kind, row.subject, row.epoch) == (kind, subject, before + 1)
    assert (entry.action, entry.reason, row.reason) == (f"{kind}.revoke", "leaked", "leaked")
    assert row.tenant == ("" if kind == "model" else "acme")
    assert row.retired == (1 if kind in ("namespace", "model") else 0)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_it_remains_when_the_transaction_fails(key_id: str, pool, kind: str) -> None:  # noqa: F811
    before, entries = compile_snapshot(), AuditEntry.objects.count()
    with pytest.raises(RuntimeError), transaction.atomic():
        _revoke(kind, key_id)
        raise RuntimeError
    assert not Revocation.objects.exists() and not FleetEpoch.objects.filter(value__gt=1).exists()
    assert (compile_snapshot(), AuditEntry.objects.count()) == (before, entries)


@pytest.mark.parametrize("kind", ("key", "namespace", "tenant"))
def test_repeating_it_makes_no_second_one(key_id: str, kind: str) -> None:
    for _ in range(2):
        _revoke(kind, key_id)
    assert Revocation.objects.count() == 1


def test_epochs_rise_in_the_order_of_the_audit_log_whatever_else_raises_them(key_id: str, pool) -> None:  # noqa: F811
    published = [publish_pending().epoch]
    _revoke("key", key_id)
    published.append(publish_pending().epoch)
    rotate_generation(actor=ACTOR, namespace=NAMESPACE)
    published.append(publish_pending().epoch)
    update_namespace(actor=ACTOR, namespace=NAMESPACE, name="no revocation")
    published.append(publish_pending().epoch)
    _revoke("model", key_id)
    _revoke("tenant", key_id)
    published.append(publish_pending().epoch)
    assert published == [1, 2, 3, 3, 5]
    rows = list(Revocation.objects.order_by("epoch"))
    assert [row.epoch for row in rows] == [2, 4, 5]
    assert sorted(row.audit_id for row in rows) == [row.audit_id for row in rows]


def test_the_snapshot_holds_every_revocation_of_its_epoch(key_id: str, pool) -> None:  # noqa: F811
    nonce = CacheNamespace.objects.get().generation_nonce
    for kind in KINDS:
        _revoke(kind, key_id)
    snapshot = compile_snapshot()
    assert snapshot.keys[key_id].status == "revoked"
    assert snapshot.namespaces[NAMESPACE].status == "revoked"
    assert snapshot.namespaces[NAMESPACE].generation_nonce != nonce
    assert snapshot.tenants["acme"].status == "revoked"
    generation = snapshot.pools["llama"].model_generations["m"]
    assert generation.number == 2 and len(generation.nonce) == 32


def test_a_router_stops_by_itself_only_where_every_namespace_denies(support, pool) -> None:  # noqa: F811
    issued = [issue_key(actor=ACTOR, namespace=NAMESPACE, name="k").key.key_id for _ in range(2)]
    revoke_key(actor=ACTOR, key_id=issued[0])
    update_namespace(actor=ACTOR, namespace=NAMESPACE, on_stale="deny")
    revoke_key(actor=ACTOR, key_id=issued[1])
    create_namespace(actor=ACTOR, tenant="acme", slug="serves")
    set_tenant_status(actor=ACTOR, tenant="acme", status="revoked")
    assert [row.denies_when_stale for row in Revocation.objects.order_by("epoch")] == [False, True, False]


def test_a_model_that_left_its_pool_comes_back_in_a_generation_of_its_own(pool) -> None:  # noqa: F811
    row, _ = revoke_model(actor=ACTOR, pool="llama", model="m")
    update_pool("llama", actor=ACTOR, models=["other"])
    update_pool("llama", actor=ACTOR, models=["m"])
    again = PoolModel.objects.get(name="m")
    assert again.generation == 2 and again.generation_nonce not in ("", row.generation_nonce)


def test_an_unknown_model_is_refused(pool) -> None:  # noqa: F811
    for of_pool, model in (("llama", "none"), ("none", "m")):
        with pytest.raises(NotFound):
            revoke_model(actor=ACTOR, pool=of_pool, model=model)


def test_keys_that_ended_leave_the_snapshot_after_every_lease(support) -> None:  # noqa: F811
    """To a router an ended key is one it never knew (S12): the snapshot does not grow for ever."""
    now = timezone.now()
    with time_machine.travel(now, tick=False) as clock:
        kept, revoked = (issue_key(actor=ACTOR, namespace=NAMESPACE, name="k").key.key_id for _ in range(2))
        expires = now + timedelta(minutes=5)
        expired = issue_key(actor=ACTOR, namespace=NAMESPACE, name="k", expires_at=expires).key.key_id
        revoke_key(actor=ACTOR, key_id=revoked)
        clock.shift(ENDED_KEYS_KEPT)
        assert set(compile_snapshot().keys) == {kept, revoked, expired}
        clock.shift(timedelta(seconds=1))
        assert set(compile_snapshot().keys) == {kept, expired}
        clock.shift(timedelta(minutes=5))
        assert set(compile_snapshot().keys) == {kept}

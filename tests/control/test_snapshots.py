"""Snapshots: compiled from the rows, signed, due while a change is uncovered, never repeated without need."""

from __future__ import annotations

import pytest
import redis
from django.conf import settings as django_settings
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane.audit.services import record
from controlplane.fleet.models import Worker
from controlplane.namespaces.key_services import issue_key, revoke_key
from controlplane.namespaces.services import rotate_generation, set_namespace_status, update_namespace
from controlplane.policies.services import set_watermark
from controlplane.prompts.services import create_template, draft_version, publish_version, retire_version
from controlplane.snapshots import tasks
from controlplane.snapshots.compiler import compile_snapshot
from controlplane.snapshots.models import PublishedSnapshot
from controlplane.snapshots.push import push_newest
from controlplane.snapshots.selectors import current, publication_due
from controlplane.snapshots.services import SNAPSHOTS_KEPT, publish_pending, reconcile
from controlplane.tenants.services import create_tenant, set_tenant_status, update_tenant
from router.contract.channels import SNAPSHOT_CHANNEL, SNAPSHOT_KEY
from router.contract.secrets import FleetKey
from router.contract.snapshot import SnapshotError, Watermark, open_document
from tests.control.conftest import ACTOR


def _opened():
    return open_document(current().document.encode(), django_settings.FLEET_KEY)


def test_the_first_snapshot_is_published_however_empty(db) -> None:
    assert publish_pending().version == 1
    assert _opened()[1].keys == {}
    assert publish_pending().version == 1


def test_it_holds_what_a_router_needs(support, pool) -> None:
    issued = issue_key(actor=ACTOR, namespace="acme/support", name="k")
    update_namespace(actor=ACTOR, namespace="acme/support", ttft_slo_ms=400.0, model_names=["m"])
    publish_pending()
    _, snapshot = _opened()
    namespace = snapshot.namespaces["acme/support"]
    assert snapshot.tenants["acme"].status == "active"
    assert snapshot.keys[issued.key.key_id].hash == issued.key.secret_hash
    assert snapshot.keys[issued.key.key_id].namespace == "acme/support"
    assert (namespace.tenant, namespace.slug, namespace.generation_nonce) == (
        "acme",
        "support",
        support.generation_nonce,
    )
    assert (namespace.ttft_slo_ms, namespace.models, namespace.watermark) == (400.0, ("m",), None)
    assert namespace.generation_at == pytest.approx(support.generation_at.timestamp(), abs=1e-3)
    assert snapshot.pools["llama"].models == ("m",)
    assert snapshot.pools["llama"].watermark == Watermark(0.65, 0.85, 0.0, "global")
    worker = snapshot.workers["llama/w1"]
    assert (worker.pool, worker.url, worker.state, worker.kv_capacity_tokens) == (
        "llama", "http://127.0.0.1:8001", "ready", 1600,
    )  # fmt: skip


@pytest.mark.parametrize("facts", [{}, {"kv_blocks": 100}, {"kv_blocks": None, "block_size": 16}, {"kv_blocks": 0}])
def test_an_unknown_capacity_stays_unknown(pool, facts: dict) -> None:
    Worker.objects.update(facts=facts)
    assert compile_snapshot().workers["llama/w1"].kv_capacity_tokens is None


def test_watermarks_of_pool_and_namespace_reach_it(support, pool) -> None:
    set_watermark(actor=ACTOR, scope="pool:llama", low=0.5, high=0.7, dwell_s=3)
    set_watermark(actor=ACTOR, scope="namespace:acme/support", low=0.4, high=0.6)
    snapshot = compile_snapshot()
    assert snapshot.pools["llama"].watermark == Watermark(0.5, 0.7, 3, "pool:llama")
    assert snapshot.namespaces["acme/support"].watermark == Watermark(0.4, 0.6, 0, "namespace:acme/support")


def test_only_published_templates_are_in_it(support) -> None:
    create_template(actor=ACTOR, tenant="acme", slug="desk")
    segments = [{"kind": "static", "name": "a", "text": "b"}]
    for version in (1, 2, 3):
        draft_version(actor=ACTOR, template="acme/desk", segments=segments)
        if version < 3:
            publish_version(actor=ACTOR, template="acme/desk", version=version)
    retire_version(actor=ACTOR, template="acme/desk", version=1)
    assert compile_snapshot().namespaces["acme/support"].templates == ("desk@2",)


def test_its_cost_in_queries_does_not_grow(support, pool) -> None:
    def queries() -> int:
        with CaptureQueriesContext(
            connection,
        ) as captured:
            compile_snapshot()
        return len(captured)

    few = queries()
    for number in range(10):
        issue_key(actor=ACTOR, namespace="acme/support", name=str(number))
        Worker.objects.create(pool=pool, slug=f"x{number}", url=f"http://127.0.0.1:{9000 + number}")
    assert queries() == few <= 11


def test_versions_rise_by_one_and_cover_every_change(support, pool) -> None:
    assert publish_pending().version == 1
    assert not publication_due()
    set_watermark(actor=ACTOR, scope="global", low=0.5, high=0.6)
    set_watermark(actor=ACTOR, scope="global", low=0.5, high=0.7)
    assert publication_due()
    assert publish_pending().version == 2  # two changes, one snapshot
    assert _opened()[0].version == 2


def test_a_change_that_no_router_needs_publishes_nothing(support) -> None:
    publish_pending()
    update_tenant(actor=ACTOR, tenant="acme", name="Other")
    assert not publication_due()
    assert publish_pending().version == 1


def test_changes_that_cancel_out_make_no_version_but_are_covered(support, pool) -> None:
    publish_pending()
    set_watermark(actor=ACTOR, scope="global", low=0.5, high=0.6)
    set_watermark(actor=ACTOR, scope="global", low=0.65, high=0.85)
    assert publication_due()
    assert publish_pending().version == 1
    assert not publication_due()


REVOCATIONS = {
    "tenant suspended": lambda key: set_tenant_status(actor=ACTOR, tenant="acme", status="suspended"),
    "tenant revoked": lambda key: set_tenant_status(actor=ACTOR, tenant="acme", status="revoked"),
    "namespace revoked": lambda key: set_namespace_status(actor=ACTOR, namespace="acme/support", status="revoked"),
    "namespace suspended": lambda key: set_namespace_status(actor=ACTOR, namespace="acme/support", status="suspended"),
    "generation rotated": lambda key: rotate_generation(actor=ACTOR, namespace="acme/support"),
    "key revoked": lambda key: revoke_key(actor=ACTOR, key_id=key.key_id),
}


@pytest.mark.parametrize("name", REVOCATIONS)
def test_a_revocation_raises_the_epoch(support, name: str) -> None:
    key = issue_key(actor=ACTOR, namespace="acme/support", name="k").key
    first = publish_pending()
    REVOCATIONS[name](key)
    revoked = publish_pending()
    assert (revoked.version, revoked.epoch) == (2, first.epoch + 1)
    create_tenant(actor=ACTOR, slug="other", name="Other")
    assert publish_pending().epoch == revoked.epoch


def test_what_was_revoked_is_in_it_with_its_status(support) -> None:
    key = issue_key(actor=ACTOR, namespace="acme/support", name="k").key
    revoke_key(actor=ACTOR, key_id=key.key_id)
    set_namespace_status(actor=ACTOR, namespace="acme/support", status="suspended")
    snapshot = compile_snapshot()
    assert snapshot.keys[key.key_id].status == "revoked"
    assert snapshot.namespaces["acme/support"].status == "suspended"


def test_another_fleet_key_cannot_open_it(support) -> None:
    publish_pending()
    with pytest.raises(SnapshotError):
        open_document(current().document.encode(), FleetKey(b"x" * 32))


def test_it_holds_no_salt(support) -> None:
    publish_pending()
    salt = django_settings.FLEET_KEY.cache_salt("acme", "support", support.generation_nonce)
    assert salt not in current().document


def test_the_commit_of_a_change_publishes_it(support, django_capture_on_commit_callbacks) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        set_watermark(actor=ACTOR, scope="global", low=0.5, high=0.6)
    assert _opened()[1].namespaces["acme/support"].status == "active"


def test_the_tick_publishes_what_a_commit_missed(support, pool) -> None:
    tasks.publish_pending()
    assert current().version == 1
    set_watermark(actor=ACTOR, scope="global", low=0.5, high=0.6)
    tasks.publish_pending()
    assert current().version == 2


def test_reconciling_takes_along_what_nobody_audits(support, pool) -> None:
    publish_pending()
    Worker.objects.update(facts={"kv_blocks": 200, "block_size": 16})
    assert publish_pending().version == 1
    assert reconcile().version == 2
    assert reconcile().version == 2
    assert _opened()[1].workers["llama/w1"].kv_capacity_tokens == 3200


def test_the_last_snapshots_are_kept_and_no_more(support, pool) -> None:
    for number in range(SNAPSHOTS_KEPT + 3):
        set_watermark(actor=ACTOR, scope="global", low=0.1 + number / 1000, high=0.9)
        publish_pending()
    versions = list(PublishedSnapshot.objects.values_list("version", flat=True))
    assert versions == list(range(SNAPSHOTS_KEPT + 3, 3, -1))


def test_it_is_pushed_through_valkey(support, valkey_url: str) -> None:
    with redis.Redis.from_url(valkey_url) as client, client.pubsub() as subscription:
        subscription.subscribe(SNAPSHOT_CHANNEL)
        assert subscription.get_message(timeout=2)["type"] == "subscribe"
        publish_pending()
        assert subscription.get_message(timeout=2)["data"] == b"1"
        assert client.get(SNAPSHOT_KEY).decode() == current().document


def test_a_late_publisher_leaves_the_newest_in_valkey(support, pool, valkey_url: str) -> None:
    first = publish_pending()
    set_watermark(actor=ACTOR, scope="global", low=0.5, high=0.6)
    publish_pending()
    with redis.Redis.from_url(valkey_url) as client:
        client.set(SNAPSHOT_KEY, first.document)
        assert push_newest()
        assert client.get(SNAPSHOT_KEY).decode() == current().document


def test_valkey_away_is_no_error_and_logged_once(support, pool, caplog) -> None:
    with caplog.at_level("WARNING"):
        assert publish_pending().version == 1
        set_watermark(actor=ACTOR, scope="global", low=0.5, high=0.6)
        assert publish_pending().version == 2
    assert len([line for line in caplog.messages if "Valkey is away" in line]) <= 1


def test_a_failed_publication_does_not_fail_the_change(
    support, monkeypatch, caplog, django_capture_on_commit_callbacks
) -> None:
    def broken() -> None:
        raise RuntimeError("compiler broken")

    monkeypatch.setattr("controlplane.snapshots.services.compile_snapshot", broken)
    with caplog.at_level("ERROR"), django_capture_on_commit_callbacks(execute=True):
        record(
            actor=ACTOR, action="thing.change", object_type="thing", object_id="1", before=None, after=None,
            affects_routing=True,
        )  # fmt: skip
    assert publication_due()

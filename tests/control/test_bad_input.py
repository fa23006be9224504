"""Input that is too long, taken already or no number: a clear error at its field, and nothing is stored."""

from __future__ import annotations

import pytest

from controlplane.fleet.models import Worker, WorkerPool
from controlplane.fleet.services import add_worker, create_pool
from controlplane.policies.models import WatermarkPolicy
from controlplane.snapshots.compiler import compile_snapshot
from controlplane.tenants.models import Tenant
from tests.control.conftest import ACTOR


def test_two_workers_cannot_have_one_id(alice, db) -> None:
    create_pool(actor=ACTOR, slug="llama", models=["m"])
    add_worker(actor=ACTOR, pool="llama", slug="w1", url="http://127.0.0.1:8001")
    body = {"pool": "llama", "slug": "w1", "url": "http://127.0.0.1:8002"}
    assert alice.post("/api/v1/workers", body, format="json").status_code == 409
    assert Worker.objects.get().url == "http://127.0.0.1:8001"


@pytest.mark.parametrize("name", ["x" * 10_000, "\u202e" * 5_000, "", "a\u0000b"])
def test_a_name_too_long_or_of_no_use_is_refused_at_its_field(alice, name: str) -> None:
    answer = alice.post("/api/v1/tenants", {"id": "acme", "name": name}, format="json")
    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == ["name"]
    assert name not in answer.content.decode() or not name
    assert not Tenant.objects.exists()


@pytest.mark.parametrize("low", ["NaN", "Infinity", "1e400", "-1", "0", "1e9", "null", "true", '"half"', "[0.5]"])
def test_a_watermark_that_is_no_share_is_refused(alice, db, low: str) -> None:
    before = WatermarkPolicy.objects.get(pool=None, namespace=None)
    body = b'{"low": %b, "high": 0.9}' % low.encode()
    answer = alice.generic(
        "PUT",
        "/api/v1/watermark-policies/global",
        body,
        content_type="application/json",
        headers={"if-match": "*"},
    )
    assert answer.status_code in (400, 422), answer.content
    after = WatermarkPolicy.objects.get(pk=before.pk)
    assert (after.low, after.high, after.revision) == (before.low, before.high, before.revision)


def test_a_connector_whose_pulls_cannot_be_weighed_is_refused(alice, db) -> None:
    costs = {"kv_bytes_per_token": 131_072, "transfer_gib_per_s": 10.0}
    body = {"id": "llama", "models": ["m"], "transfer": "nixl"}
    for missing in costs:
        answer = alice.post("/api/v1/pools", body | costs | {missing: None}, format="json")
        assert answer.status_code == 422
        assert [error["field"] for error in answer.json()["errors"]] == ["transfer"]
    assert alice.post("/api/v1/pools", body | costs | {"transfer": "rdma"}, format="json").status_code == 422
    assert not WorkerPool.objects.exists()
    assert alice.post("/api/v1/pools", body | costs, format="json").json()["transfer"] == "nixl"
    assert compile_snapshot().pools["llama"].transfer == "nixl"

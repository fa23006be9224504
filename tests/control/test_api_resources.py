"""The life of tenants, namespaces, keys, pools, workers and watermarks over REST."""

from __future__ import annotations

import pytest

from controlplane.audit.models import AuditEntry
from controlplane.namespaces.models import ApiKey
from controlplane.namespaces.services import create_namespace
from controlplane.tenants.services import create_tenant
from router.contract.secrets import split_api_key
from tests.control.conftest import ACTOR


def _send(client, method: str, path: str, body: object = None, **headers: str):
    return getattr(client, method)(f"/api/v1/{path}", body, format="json", headers=headers)


def test_a_tenant_is_created_shown_renamed_and_revoked(alice) -> None:
    created = _send(alice, "post", "tenants", {"id": "acme", "name": "Acme"})
    assert (created.status_code, created["etag"]) == (201, '"1"')
    assert created.json()["id"] == "acme" and created.json()["status"] == "active"
    renamed = _send(alice, "patch", "tenants/acme", {"name": "Acme Ltd"}, **{"if-match": '"1"'})
    assert (renamed.status_code, renamed["etag"], renamed.json()["name"]) == (200, '"2"', "Acme Ltd")
    revoked = _send(alice, "post", "tenants/acme/status", {"status": "revoked", "reason": "contract ended"})
    assert revoked.json()["status"] == "revoked"
    entry = AuditEntry.objects.first()
    assert (entry.actor, entry.action, entry.reason) == ("user:alice", "tenant.revoke", "contract ended")
    assert entry.request_id == revoked["x-request-id"]


@pytest.mark.parametrize("models", [[], [1], "m", [""], [None]])
def test_a_pool_needs_model_names(alice, models: object) -> None:
    answer = _send(alice, "post", "pools", {"id": "llama", "models": models})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"].startswith("models")


def test_a_namespace_lives_at_its_id(alice, support) -> None:
    made = _send(alice, "post", "namespaces", {"tenant": "acme", "slug": "sales", "ttft_slo_ms": 300})
    assert (made.status_code, made.json()["id"]) == (201, "acme/sales")
    changed = _send(alice, "patch", "namespaces/acme/sales", {"on_stale": "deny"}, **{"if-match": '"1"'})
    assert (changed.json()["on_stale"], changed.json()["ttft_slo_ms"]) == ("deny", 300.0)
    rotated = _send(alice, "post", "namespaces/acme/sales/rotate", {"reason": "leak"})
    assert rotated.json()["generation"] == 2
    suspended = _send(alice, "post", "namespaces/acme/sales/status", {"status": "suspended"}, **{"if-match": '"3"'})
    assert suspended.json()["status"] == "suspended"
    assert "nonce" not in str(_send(alice, "get", "namespaces/acme/sales").json())


def test_a_key_is_shown_once(alice, support) -> None:
    issued = _send(alice, "post", "keys", {"namespace": "acme/support", "name": "ci"})
    key_id, _ = split_api_key(issued.json()["key"])
    shown = _send(alice, "get", f"keys/{key_id}")
    assert "key" not in shown.json() and ApiKey.objects.get().secret_hash not in str(shown.json())
    assert _send(alice, "get", "keys?namespace=acme/support").json()["items"] == [shown.json()]
    assert _send(alice, "get", "keys?namespace=acme/other").json()["items"] == []
    assert _send(alice, "post", f"keys/{key_id}/revoke", {}).json()["status"] == "revoked"


def test_a_pool_and_its_workers(alice, db) -> None:
    pool = _send(alice, "post", "pools", {"id": "llama", "models": ["m"], "block_size": 32})
    assert (pool.status_code, pool.json()["models"], pool.json()["block_size"]) == (201, ["m"], 32)
    worker = _send(alice, "post", "workers", {"pool": "llama", "slug": "w1", "url": "http://127.0.0.1:8001"})
    assert (worker.status_code, worker.json()["id"], worker.json()["facts"]) == (201, "llama/w1", {})
    drained = _send(alice, "post", "workers/llama/w1/state", {"state": "drain"})
    assert (drained.json()["state"], drained["etag"]) == ("drain", '"2"')
    assert _send(alice, "delete", "pools/llama", **{"if-match": "*"}).status_code == 409
    assert _send(alice, "patch", "workers/llama/w1", {"url": "http://1.2.3.4"}, **{"if-match": "*"}).status_code == 422
    assert _send(alice, "delete", "workers/llama/w1", **{"if-match": '"2"'}).status_code == 204
    changed = _send(alice, "patch", "pools/llama", {"routing": "ring", "models": ["n"]}, **{"if-match": '"1"'})
    assert (changed.json()["routing"], changed.json()["models"]) == ("ring", ["n"])
    assert _send(alice, "delete", "pools/llama", **{"if-match": '"2"'}).status_code == 204
    assert _send(alice, "get", "pools/llama").status_code == 404


def test_a_live_test_of_a_worker_that_is_not_there_says_so(alice, db) -> None:
    _send(alice, "post", "pools", {"id": "llama", "models": ["m"]})
    _send(alice, "post", "workers", {"pool": "llama", "slug": "w1", "url": "http://127.0.0.1:9"})
    tested = _send(alice, "post", "workers/llama/w1/test")
    assert tested.status_code == 200
    assert any(check["ok"] is False for check in tested.json()["test_report"])


def test_a_watermark_is_made_changed_and_cleared(alice, support, pool) -> None:
    path = "watermark-policies/namespace:acme/support"
    assert _send(alice, "get", path).status_code == 404
    made = _send(alice, "put", path, {"low": 0.5, "high": 0.7}, **{"if-none-match": "*"})
    assert (made.status_code, made["etag"], made.json()["scope"]) == (200, '"1"', "namespace:acme/support")
    assert _send(alice, "put", path, {"low": 0.5, "high": 0.8}, **{"if-none-match": "*"}).status_code == 412
    assert _send(alice, "put", path, {"low": 0.5, "high": 0.8}).status_code == 428
    assert _send(alice, "put", path, {"low": 0.5, "high": 0.8}, **{"if-match": '"1"'})["etag"] == '"2"'
    assert _send(alice, "delete", path, **{"if-match": '"2"'}).status_code == 204
    assert _send(alice, "delete", "watermark-policies/global", **{"if-match": "*"}).status_code == 409
    kinds = _send(alice, "get", "watermark-policies?kind=global").json()["items"]
    assert [item["scope"] for item in kinds] == ["global"]


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({"low": 0.9, "high": 0.8}, ["low"]),
        ({"low": 0, "high": 0.8}, ["low"]),
        ({"low": 0.5, "high": 1e9}, ["high"]),
        ({"low": 0.5, "high": "x"}, ["high"]),
        ({"low": 0.5}, ["high"]),
        ({"low": 0.5, "high": 0.8, "dwell_s": -1}, ["dwell_s"]),
        ({"low": 0.5, "high": 0.8, "hihg": 0.9}, ["hihg"]),
    ],
)
def test_a_wrong_watermark_is_refused_at_its_field(alice, body: dict, fields: list[str]) -> None:
    answer = _send(alice, "put", "watermark-policies/global", body, **{"if-match": "*"})
    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == fields
    assert not AuditEntry.objects.exists()


def test_pages_hold_every_row_once_while_rows_come_and_go(alice, db) -> None:
    for number in range(7):
        create_tenant(actor=ACTOR, slug=f"t{number}", name="T")
    first = _send(alice, "get", "tenants?limit=3").json()
    create_tenant(actor=ACTOR, slug="later", name="T")
    second = _send(alice, "get", f"tenants?limit=3&cursor={first['next_cursor']}").json()
    third = _send(alice, "get", f"tenants?limit=3&cursor={second['next_cursor']}").json()
    ids = [item["id"] for page in (first, second, third) for item in page["items"]]
    assert ids == [*(f"t{number}" for number in range(7)), "later"]
    assert third["next_cursor"] is None


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=201", "limit"),
        ("limit=x", "limit"),
        ("limit=²", "limit"),
        ("cursor=zzz", "cursor"),
        ("cursor=aWQ6LTE", "cursor"),
        ("cursor=aWQ6OTk5OTk5OTk5OTk5OTk5OTk5OTk5", "cursor"),
        ("sttaus=active", "sttaus"),
        ("status=happy", "status"),
    ],
)
def test_a_wrong_query_is_refused_by_name(alice, query: str, field: str) -> None:
    answer = _send(alice, "get", f"tenants?{query}")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == field


def test_the_audit_log_is_read_newest_first_and_filtered(alice, support) -> None:
    create_namespace(actor="user:carol", tenant="acme", slug="sales")
    page = _send(alice, "get", "audit?limit=2").json()
    assert [item["action"] for item in page["items"]] == ["namespace.create", "namespace.create"]
    rest = _send(alice, "get", f"audit?cursor={page['next_cursor']}").json()
    assert [item["action"] for item in rest["items"]] == ["tenant.create"]
    mine = _send(alice, "get", "audit?actor=user:carol&object_id=acme/sales").json()["items"]
    assert [item["object_id"] for item in mine] == ["acme/sales"]
    assert _send(alice, "get", "audit?since=yesterday").status_code == 422


@pytest.mark.parametrize("since", ["0140-12-02T07:47:55.8+20:31", "2026-01-01T00:00:00-23:59"])
def test_a_moment_in_an_odd_zone_is_a_moment(alice, db, since: str) -> None:
    assert alice.get("/api/v1/audit", {"since": since}).status_code == 200


def test_a_moment_that_has_no_utc_is_refused(alice, db) -> None:
    answer = alice.get("/api/v1/audit", {"since": "0001-01-01T00:00:00+14:00"})
    assert answer.status_code == 422 and answer.json()["errors"][0]["field"] == "since"

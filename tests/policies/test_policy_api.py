"""Policies over REST: revisions, rollback, overrides, and what is in force with where it comes from."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

WATERMARK = "/api/v1/watermark-policies/pool:llama"
ROUTING = "/api/v1/routing-policies/namespace:acme/support"
NEW = {"If-None-Match": "*"}


def _values(body: dict[str, object]) -> dict[str, dict[str, object]]:
    return {value["name"]: value for value in body["values"]}


def test_a_rolled_back_watermark_is_a_further_revision(alice, pool) -> None:
    assert alice.put(WATERMARK, {"low": 0.4, "high": 0.6}, headers=NEW).status_code == 200
    assert alice.put(WATERMARK, {"low": 0.4, "high": 0.9}, headers={"If-Match": '"1"'}).status_code == 200
    assert alice.post(f"{WATERMARK}/rollback", {}, headers={"If-Match": '"1"'}).status_code == 412
    answer = alice.post(f"{WATERMARK}/rollback", {"reason": "TTFT rose"}, headers={"If-Match": '"2"'})
    assert answer.status_code == 200
    assert (answer.json()["number"], answer.json()["repeats"], answer.json()["values"]["high"]) == (3, 1, 0.6)
    listed = alice.get("/api/v1/policy-revisions?kind=watermark&scope=pool:llama").json()["items"]
    assert [(item["number"], item["origin"]) for item in listed] == [(3, "rollback"), (2, "set"), (1, "set")]
    one = alice.get("/api/v1/policy-revisions/watermark/pool:llama/2").json()
    assert (one["values"]["high"], one["author"]) == (0.9, "user:alice")


def test_a_routing_policy_is_set_shown_and_cleared(alice, support) -> None:
    body = {"values": {"priority": 2, "shed_over_slo": None}}
    assert alice.put(ROUTING, body).status_code == 428
    answer = alice.put(ROUTING, body, headers=NEW)
    assert answer.status_code == 200 and answer.json()["values"] == {"priority": 2}
    assert alice.get(ROUTING)["ETag"] == '"1"'
    assert alice.get("/api/v1/routing-policies").json()["items"][0]["scope"] == "namespace:acme/support"
    assert alice.delete(ROUTING, headers={"If-Match": '"1"'}).status_code == 204
    assert alice.get(ROUTING).status_code == 404


@pytest.mark.parametrize(
    ("scope", "values", "field"),
    [
        ("pool:llama", {"priority": 1}, "priority"),
        ("pool:llama", {"virtual_nodes": 5000}, "values.virtual_nodes"),
        ("pool:llama", {"colour": 5}, "values.colour"),
        ("global", {"routing": "ring"}, "scope"),
    ],
)
def test_a_wrong_value_is_named(alice, pool, scope: str, values: dict[str, object], field: str) -> None:
    answer = alice.put(f"/api/v1/routing-policies/{scope}", {"values": values}, headers=NEW)
    assert answer.status_code == 422 and [error["field"] for error in answer.json()["errors"]] == [field]


def test_the_effective_policy_names_the_source_of_each_value(alice, support, pool) -> None:
    alice.put("/api/v1/watermark-policies/pool:llama", {"low": 0.4, "high": 0.6}, headers=NEW)
    alice.put(ROUTING, {"values": {"priority": 2}}, headers=NEW)
    values = _values(alice.get("/api/v1/effective-policy?pool=llama&namespace=acme/support").json())
    assert (values["high"]["value"], values["high"]["origin"], values["high"]["revision"]) == (0.6, "pool:llama", 1)
    assert values["high"]["asked"] == ["namespace:acme/support"]
    assert (values["priority"]["value"], values["priority"]["origin"]) == (2, "namespace:acme/support")
    assert values["ttft_slo_ms"]["origin"] == "settings of namespace acme/support"
    assert (values["routing"]["value"], values["routing"]["origin"]) == ("tidemark", "settings of pool llama")


def test_an_override_shows_its_end_and_what_stands_behind_it(alice, pool) -> None:
    until = (timezone.now() + timedelta(hours=1)).isoformat()
    alice.put(WATERMARK, {"low": 0.4, "high": 0.6}, headers=NEW)
    answer = alice.put(WATERMARK, {"low": 0.1, "high": 0.2, "expires_at": until}, headers={"If-Match": '"1"'})
    assert answer.status_code == 200 and answer.json()["expires_at"] is not None
    high = _values(alice.get("/api/v1/effective-policy?pool=llama").json())["high"]
    assert high["value"] == 0.2 and high["expires_at"] is not None
    past = alice.put(
        WATERMARK, {"low": 0.1, "high": 0.3, "expires_at": "2020-01-01T00:00:00Z"}, headers={"If-Match": "*"}
    )
    assert past.status_code == 422


@pytest.mark.parametrize("query", ["", "pool=none", "pool=llama&namespace=acme/none", "pool=llama&colour=1"])
def test_the_effective_policy_of_nothing_is_refused(alice, pool, query: str) -> None:
    assert alice.get(f"/api/v1/effective-policy?{query}").status_code in (404, 422)


def test_a_viewer_reads_and_changes_nothing(bob, charlie, pool) -> None:
    assert bob.get("/api/v1/policy-revisions").status_code == 200
    assert bob.get("/api/v1/effective-policy?pool=llama").status_code == 200
    assert bob.put(WATERMARK, {"low": 0.4, "high": 0.6}, headers=NEW).status_code == 403
    assert bob.post(f"{WATERMARK}/rollback", {}).status_code == 403
    for path in ("policy-revisions", "effective-policy?pool=llama", "routing-policies", "change-requests"):
        assert charlie.get(f"/api/v1/{path}").status_code == 401


def test_a_roll_out_stands_beside_the_value_that_it_would_replace(alice, support, pool) -> None:
    body = {"kind": "watermark", "scope": "global", "values": {"low": 0.2, "high": 0.4}, "stages": [0.3, 1]}
    assert alice.post("/api/v1/rollouts", body).status_code == 201
    high = _values(alice.get("/api/v1/effective-policy?pool=llama").json())["high"]
    assert (high["value"], high["origin"], high["candidate"]["value"], high["candidate"]["share"]) == (
        0.85,
        "global",
        0.4,
        0.3,
    )
    alice.put(WATERMARK, {"low": 0.4, "high": 0.6}, headers=NEW)
    assert _values(alice.get("/api/v1/effective-policy?pool=llama").json())["high"]["candidate"] is None

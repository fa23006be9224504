"""Placement rules over REST."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

BODY = {"namespace": "acme/support", "pool": "llama", "prefix": "9f3a77c1d2000001", "homes": 3, "reason": "hot"}


def body(**changes: object) -> dict[str, object]:
    return {**BODY, "until": (timezone.now() + timedelta(hours=1)).isoformat()} | changes


def test_a_rule_is_set_listed_shown_and_reverted(alice, support, pool) -> None:
    made = alice.post("/api/v1/placements", body())
    assert made.status_code == 201, made.content
    row = made.json()
    assert (row["homes"], row["created_by"], row["outcome"], row["ended_at"]) == (3, "user:alice", "", None)
    address = f"/api/v1/placements/{row['id']}"
    assert alice.get(address)["ETag"] == '"1"'
    assert [
        item["id"] for item in alice.get("/api/v1/placements?open=true&namespace=acme/support").json()["items"]
    ] == [row["id"]]
    assert alice.delete(address, headers={"If-Match": '"7"'}).status_code == 412
    assert alice.delete(address, headers={"If-Match": '"1"'}).status_code == 204
    assert alice.delete(address).status_code == 409
    assert alice.get("/api/v1/placements?open=true").json()["items"] == []
    assert alice.get(address).json()["outcome"] == "reverted"


def test_wrong_values_are_named(alice, support, pool) -> None:
    for change, field in (({"homes": 1}, "homes"), ({"prefix": "x"}, "prefix"), ({"colour": 1}, "colour")):
        answer = alice.post("/api/v1/placements", body(**change))
        assert answer.status_code == 422
        assert [error["field"] for error in answer.json()["errors"]] == [field]


def test_who_may_only_look_changes_nothing(bob, support, pool) -> None:
    assert bob.post("/api/v1/placements", body()).status_code == 403
    assert bob.get("/api/v1/placements").json()["items"] == []

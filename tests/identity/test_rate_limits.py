"""Rate limits of the API: for each caller, reads and changes apart, told in headers; Valkey may be away."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
import time_machine
from django.core.cache import cache

from controlplane.caching import SharedCache


@pytest.fixture(autouse=True)
def limits(settings) -> Iterator[None]:
    settings.CONFIG = settings.CONFIG.model_copy(update={"api_reads_per_min": 3, "api_changes_per_min": 1})
    cache.clear()
    with time_machine.travel("2026-03-01T12:00:20Z", tick=False):
        yield
    cache.clear()


def test_it_tells_how_much_is_left_and_refuses_beyond(alice) -> None:
    seen = [alice.get("/api/v1/namespaces") for _ in range(4)]
    assert [answer.status_code for answer in seen] == [200, 200, 200, 429]
    assert [answer["ratelimit-remaining"] for answer in seen] == ["2", "1", "0", "0"]
    assert {(answer["ratelimit-limit"], answer["ratelimit-reset"]) for answer in seen} == {("3", "40")}
    refused = seen[-1]
    assert refused["content-type"] == "application/problem+json" and refused["retry-after"] == "41"
    assert refused.json()["code"] == "throttled"


def test_changes_are_counted_apart_from_reads(alice) -> None:
    for _ in range(3):
        alice.get("/api/v1/namespaces")
    body = {"tenant": "acme", "slug": "more"}
    assert alice.post("/api/v1/namespaces", body, format="json").status_code == 201
    assert alice.post("/api/v1/namespaces", body, format="json").status_code == 429


def test_callers_do_not_use_up_each_others_share(alice, bob) -> None:
    for _ in range(4):
        alice.get("/api/v1/namespaces")
    assert bob.get("/api/v1/namespaces").status_code == 200


def test_the_next_minute_is_a_fresh_one(alice) -> None:
    for _ in range(4):
        alice.get("/api/v1/namespaces")
    with time_machine.travel("2026-03-01T12:01:00Z", tick=False):
        assert alice.get("/api/v1/namespaces").status_code == 200


def test_guesses_of_a_token_count(client, db) -> None:
    guess = {"authorization": "Bearer tmp_000000000000_" + "x" * 43}
    assert [client.get("/api/v1/tenants", headers=guess).status_code for _ in range(4)] == [401, 401, 401, 429]


def test_routers_are_not_limited(settings, client, db) -> None:
    headers = {"authorization": f"Bearer {settings.FLEET_KEY.router_token()}"}
    assert {client.get("/api/v1/snapshots/current", headers=headers).status_code for _ in range(5)} == {404}


def test_processes_share_the_count_in_valkey(valkey_url) -> None:
    one, other = (SharedCache(valkey_url, {"KEY_PREFIX": "t"}) for _ in range(2))
    assert one.add("n", 0, timeout=60) and not other.add("n", 0, timeout=60)
    assert [one.incr("n"), other.incr("n")] == [1, 2]
    assert one.get("n") == 2


def test_the_requests_of_a_process_share_their_connections(valkey_url) -> None:
    with redis.Redis.from_url(valkey_url) as client:
        SharedCache(valkey_url, {"KEY_PREFIX": "t"}).get("n")
        before = client.info("stats")["total_connections_received"]
        for _ in range(20):
            SharedCache(valkey_url, {"KEY_PREFIX": "t"}).get("n")
        assert client.info("stats")["total_connections_received"] == before


def test_without_valkey_each_process_counts_for_itself(tmp_path) -> None:
    alone = SharedCache(f"unix://{tmp_path}/none.sock", {"KEY_PREFIX": "t"})
    alone.clear()
    assert alone.add("n", 0, timeout=60)
    assert [alone.incr("n"), alone.incr("n")] == [1, 2]

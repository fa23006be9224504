"""Decisions over REST: candidates with their terms, and nothing of another tenant's requests."""

from __future__ import annotations

import pytest

from tests.identity.conftest import alice, charlie, olga, world  # noqa: F401  (fixtures)

pytestmark = pytest.mark.django_db


def test_an_operator_sees_every_candidate_best_first(olga) -> None:  # noqa: F811
    shown = olga.get("/api/v1/decisions/of-acme").json()
    chosen, excluded = shown["candidates"]
    assert (chosen["worker"], chosen["outstanding"], chosen["kv_use"]) == ("llama/w1", 12, None)
    assert (chosen["saved_ms"], chosen["queue_ms"], chosen["net_ms"]) == (40.0, 0.0, 40.0)
    assert (excluded["worker"], excluded["excluded"]) == ("llama/w0", "drain")
    assert shown["sentence"] == "w1 is its home, 12 requests under way." and shown["policy_version"] == 7
    assert shown["ttft_ms"] is None and shown["predicted_hit_tokens"] == 512


def test_a_tenants_member_learns_nothing_of_others_load(alice) -> None:  # noqa: F811
    answer = alice.get("/api/v1/decisions/of-acme")
    shown = answer.json()
    assert shown["sentence"] == "w1 is its home."
    assert shown["candidates"][0]["saved_ms"] == 40.0
    assert not {"outstanding", "kv_use", "prefill_tokens_per_s"} & set(shown["candidates"][0])


def test_another_tenants_decision_is_as_absent(charlie) -> None:  # noqa: F811
    foreign, absent = (charlie.get(f"/api/v1/decisions/{name}") for name in ("of-acme", "of-nobody"))
    assert foreign.status_code == absent.status_code == 404
    assert foreign.json() | {"request_id": ""} == absent.json() | {"request_id": ""}
    listed = charlie.get("/api/v1/decisions").json()["items"]
    assert [row["request_id"] for row in listed] == ["of-globex"]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("tenant=acme", ["of-acme"]),
        ("worker=llama/w1&limit=1", ["of-globex"]),
        ("outcome=timeout", []),
        ("ttft_ms_min=1", []),
        ("off_tokens_min=1", []),
        ("since=2020-01-01T00:00:00Z&reason=home", ["of-globex", "of-acme"]),
        ("until=2020-01-01T00:00:00Z", []),
    ],
)
def test_the_list_is_narrowed(olga, query: str, found: list[str]) -> None:  # noqa: F811
    assert [row["request_id"] for row in olga.get(f"/api/v1/decisions?{query}").json()["items"]] == found


@pytest.mark.parametrize("query", ["off_tokens_min=1e400", "since=soon", "colour=red", "ttft_ms_min=-1"])
def test_a_filter_that_makes_no_sense_is_refused(olga, query: str) -> None:  # noqa: F811
    assert olga.get(f"/api/v1/decisions?{query}").status_code in (400, 422)

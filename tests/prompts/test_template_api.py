"""Templates over REST, from the draft to the regression check; a tenant's templates are for those who may see it."""

from __future__ import annotations

import pytest

SEGMENTS = [
    {
        "kind": "static",
        "name": "rules",
        "text": "You are the assistant of a hardware shop. Be exact and be brief. " * 3 + ".",
    },
    {"kind": "dynamic", "name": "question", "text": "{question}"},
]
DESK = "/api/v1/templates/acme/desk"


@pytest.fixture
def desk(alice, support):
    assert alice.post("/api/v1/templates", {"tenant": "acme", "slug": "desk"}).status_code == 201
    assert alice.post(f"{DESK}/versions", {"segments": SEGMENTS}).status_code == 201
    return alice


def test_a_version_is_drafted_edited_published_and_retired(desk) -> None:
    edited = [SEGMENTS[0] | {"text": SEGMENTS[0]["text"] + "\n"}, SEGMENTS[1]]
    assert desk.put(f"{DESK}/versions/1", {"segments": edited}).status_code == 428
    answer = desk.put(f"{DESK}/versions/1", {"segments": edited}, headers={"If-Match": '"1"'})
    assert answer.json()["segments"][0]["text"].endswith(".\n"), "white space is the author's"
    assert desk.post(f"{DESK}/versions/1/publish", {}, headers={"If-Match": '"2"'}).json()["status"] == "published"
    assert desk.put(f"{DESK}/versions/1", {"segments": edited}, headers={"If-Match": "*"}).status_code == 409
    assert desk.post(f"{DESK}/versions/1/retire", {"reason": "old"}).json()["status"] == "retired"
    assert [row["version"] for row in desk.get(f"{DESK}/versions?status=retired").json()["items"]] == [1]


def test_publication_is_refused_for_a_lint_and_names_the_segment(desk) -> None:
    late = [SEGMENTS[0] | {"text": "Request id: 77. " + SEGMENTS[0]["text"]}, SEGMENTS[1]]
    desk.put(f"{DESK}/versions/1", {"segments": late}, headers={"If-Match": "*"})
    answer = desk.post(f"{DESK}/versions/1/publish", {})
    assert (answer.status_code, answer.json()["code"]) == (422, "lint")
    assert answer.json()["errors"][0]["field"] == "segments.0.text"
    accepted = desk.post(f"{DESK}/versions/1/publish", {"accept": ["request_id_early"], "reason": "fixed text"})
    assert accepted.json()["accepted_lints"] == ["request_id_early"]


def test_lints_of_a_version_and_of_segments_that_are_not_stored(desk, exact_pool) -> None:
    report = desk.get(f"{DESK}/versions/1/lints?pool=llama").json()
    assert (report["exact"], report["tokenizer"], report["block_size"]) == (True, "lab", 16)
    wrong = {"segments": [SEGMENTS[1], SEGMENTS[0]]}
    codes = [lint["code"] for lint in desk.post(f"{DESK}/lints", wrong).json()["lints"]]
    assert "dynamic_before_static" in codes
    assert desk.get(f"{DESK}/versions/1/lints?pool=none").status_code == 404
    assert desk.get(f"{DESK}/versions/1/lints?colour=1").status_code == 422


def test_two_versions_are_compared(desk) -> None:
    other = [SEGMENTS[0] | {"text": SEGMENTS[0]["text"].replace("brief. ", "short. ", 1)}, SEGMENTS[1]]
    desk.post(f"{DESK}/versions", {"segments": other})
    found = desk.get(f"{DESK}/diff?from=1&to=2").json()
    assert (found["segment"], found["first_divergent_block"], found["exact"]) == ("rules", 0, False)
    assert found["cached_tokens_lost"] > 0
    assert desk.get(f"{DESK}/diff?from=1").status_code == 422
    assert desk.get(f"{DESK}/diff?from=1&to=9").status_code == 404


def test_a_version_is_rendered_with_stable_json(desk) -> None:
    one = desk.post(f"{DESK}/versions/1/render", {"values": {"question": {"b": 1, "a": 2}}}).json()
    other = desk.post(f"{DESK}/versions/1/render", {"values": {"question": {"a": 2, "b": 1}}}).json()
    assert one == other and one["text"].endswith('\n{"a":2,"b":1}')
    missing = desk.post(f"{DESK}/versions/1/render", {"values": {}})
    assert [error["field"] for error in missing.json()["errors"]] == ["values.question"]
    broken = desk.post(
        f"{DESK}/versions/1/render", b'{"values": {"question": "\\ud800"}}', content_type="application/json"
    )
    assert broken.status_code == 422


def test_the_regression_check_shows_each_pool(desk, exact_pool) -> None:
    assert desk.post(f"{DESK}/versions/1/regression").status_code == 409
    desk.post(f"{DESK}/versions/1/publish", {})
    (pool,) = desk.post(f"{DESK}/versions/1/regression").json()["pools"]
    assert (pool["pool"], pool["fault"]) == ("llama", "")
    assert desk.put(f"{DESK}/versions/1/regression", {"reason": "checked"}).status_code == 200


def test_a_viewer_reads_and_renders_but_changes_nothing(desk, bob, charlie) -> None:
    assert bob.get(f"{DESK}/versions/1").status_code == 200
    assert bob.post(f"{DESK}/versions/1/render", {"values": {"question": "q"}}).status_code == 200
    for path, body in (("versions", {"segments": SEGMENTS}), ("versions/1/publish", {}), ("versions/1/retire", {})):
        assert bob.post(f"{DESK}/{path}", body).status_code == 403
        assert charlie.post(f"{DESK}/{path}", body).status_code == 401
    assert charlie.get(DESK).status_code == 401

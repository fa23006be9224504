"""Alice and Bob of acme see acme's things; Charlie of globex sees nothing of them, nor whether they exist."""

from __future__ import annotations

import pytest

from tests.identity.world import KEYS

LISTS = ["tenants", "namespaces", "keys", "watermark-policies", "change-requests", "policy-revisions"]
FOREIGN_AND_ABSENT = [
    ("get", "tenants/acme", "tenants/none"),
    ("get", "namespaces/acme/support", "namespaces/acme/none"),
    ("patch", "namespaces/acme/support", "namespaces/none/none"),
    ("post", "namespaces/acme/support/status", "namespaces/none/none/status"),
    ("get", f"keys/{KEYS['acme']}", "keys/nosuchkey000"),
    ("post", f"keys/{KEYS['acme']}/revoke", "keys/nosuchkey000/revoke"),
    ("get", "watermark-policies/namespace:acme/support", "watermark-policies/namespace:none/none"),
    ("get", "change-requests/1", "change-requests/99"),
]


@pytest.mark.parametrize("name", LISTS)
def test_lists_hold_the_callers_tenants_only(alice, bob, charlie, olga, name: str) -> None:
    shown = {who: api.get(f"/api/v1/{name}").content.decode() for who, api in
             {"alice": alice, "bob": bob, "charlie": charlie, "olga": olga}.items()}  # fmt: skip
    assert "acme" in shown["alice"] and "globex" not in shown["alice"]
    assert shown["alice"] == shown["bob"]
    assert "globex" in shown["charlie"] and "acme" not in shown["charlie"]
    assert "acme" in shown["olga"] and "globex" in shown["olga"]


@pytest.mark.parametrize("name", ["namespaces?tenant=acme", "keys?tenant=acme", "keys?namespace=acme/support"])
def test_a_filter_opens_no_other_tenant(charlie, name: str) -> None:
    assert charlie.get(f"/api/v1/{name}").json() == {"items": [], "next_cursor": None}


@pytest.mark.parametrize(("method", "foreign", "absent"), FOREIGN_AND_ABSENT)
def test_foreign_and_absent_get_the_same_answer(charlie, method: str, foreign: str, absent: str) -> None:
    answers = [
        getattr(charlie, method)(f"/api/v1/{path}", {}, format="json", headers={"if-match": "*"})
        for path in (foreign, absent)
    ]
    bodies = [answer.json() | {"request_id": ""} for answer in answers]
    headers = [{name for name, _ in answer.items()} for answer in answers]
    assert [answer.status_code for answer in answers] == [404, 404]
    assert bodies[0] == bodies[1] and headers[0] == headers[1]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("namespaces", {"tenant": "{}", "slug": "more"}),
        ("keys", {"namespace": "{}/support", "name": "k"}),
    ],
)
def test_a_tenant_named_in_a_body_is_no_way_round(charlie, path: str, body: dict[str, str]) -> None:
    answers = []
    for tenant in ("acme", "none"):
        sent = {name: value.format(tenant) for name, value in body.items()}
        answer = charlie.post(f"/api/v1/{path}", sent, format="json")
        answers.append((answer.status_code, answer.json() | {"request_id": ""}))
    assert answers[0] == answers[1] and answers[0][0] == 404


def test_a_tenants_administrator_manages_its_namespaces_and_keys(alice) -> None:
    made = alice.post("/api/v1/namespaces", {"tenant": "acme", "slug": "more"}, format="json")
    assert made.status_code == 201
    key = alice.post("/api/v1/keys", {"namespace": "acme/more", "name": "k"}, format="json").json()
    assert alice.post(f"/api/v1/keys/{key['id']}/revoke", {}, format="json").json()["status"] == "revoked"


def test_a_tenants_administrator_raises_no_priority(alice, olga) -> None:
    change = {"priority": 4}
    path, headers = "/api/v1/namespaces/acme/support", {"if-match": "*"}
    assert alice.patch(path, change, format="json", headers=headers).status_code == 403
    assert olga.patch(path, change, format="json", headers=headers).status_code == 200


def test_a_viewer_of_a_tenant_changes_nothing(bob) -> None:
    answer = bob.patch("/api/v1/namespaces/acme/support", {"name": "x"}, format="json", headers={"if-match": "*"})
    assert answer.status_code == 403


@pytest.mark.parametrize("page", ["/fragments/fleet/", "/workers/", "/policies/", "/checklist/", "/webhooks/"])
def test_pages_of_the_whole_fleet_are_closed_to_members_of_one_tenant(alice, page: str) -> None:
    assert alice.get(page).status_code == 403


def test_a_member_of_one_tenant_begins_at_that_tenant(alice) -> None:
    assert alice.get("/")["location"] == "/status/"
    assert alice.get("/status/")["location"].startswith("/status/acme/")
    html = alice.get("/tenants/").content.decode()
    assert "acme" in html and "globex" not in html and 'href="/workers/' not in html


def test_the_audit_log_shows_members_of_a_tenant_what_is_about_it(alice, charlie, olga) -> None:
    made = alice.post("/api/v1/keys", {"namespace": "acme/support", "name": "k"}, format="json").json()
    alice.post("/api/v1/members", {"user": "member-of-globex", "role": "viewer", "tenant": "acme"}, format="json")
    olga.patch("/api/v1/tenants/acme", {"name": "Acme Ltd"}, format="json", headers={"if-match": "*"})
    olga.post("/api/v1/pools", {"id": "acme", "models": ["x"]}, format="json")
    shown = {(row["object_type"], row["object_id"]) for row in alice.get("/api/v1/audit").json()["items"]}
    assert shown == {
        ("key", made["id"]),
        ("member", "member-of-globex@acme"),
        ("tenant", "acme"),
        ("watermark", "namespace:acme/support"),
        ("routing", "namespace:acme/support"),
    }
    foreign = charlie.get("/api/v1/audit").content.decode()
    assert "globex" in foreign and "acme" not in foreign
    assert ("pool", "acme") in {
        (row["object_type"], row["object_id"]) for row in olga.get("/api/v1/audit").json()["items"]
    }

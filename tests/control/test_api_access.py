"""Who may call the API with which credentials; which role may call what is `tests/identity/matrix.txt`."""

from __future__ import annotations

import pytest
from rest_framework.test import APIClient

from controlplane.tenants.models import User
from tests.identity.matrix import ADDRESSES, lines

FOR_ROUTERS = {"api-snapshot-current", "api-snapshot-poll"}
CASES = [
    (name, f"/api/v1/{ADDRESSES[name].own}", method)
    for name, method in lines()
    if name in ADDRESSES and name not in ("api-docs", "api-schema")
]


@pytest.mark.parametrize(("name", "path", "method"), CASES)
def test_a_stranger_gets_401_everywhere(charlie, name: str, path: str, method: str) -> None:
    answer = getattr(charlie, method)(path, {}, format="json")
    assert answer.status_code == 401
    assert answer["content-type"] == "application/problem+json"
    assert answer["www-authenticate"] in ("Session", "Bearer")


@pytest.mark.parametrize(("name", "path", "method"), CASES)
def test_a_router_token_opens_the_snapshot_endpoints_only(router_client, name: str, path: str, method: str) -> None:
    answer = getattr(router_client, method)(path, {}, format="json")
    assert (answer.status_code in (401, 403)) == (name not in FOR_ROUTERS)


@pytest.mark.parametrize("token", ["", "x", "Bearer", "é"])
def test_a_wrong_router_token_is_refused(db, token: str) -> None:
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {token}")
    assert client.post("/api/v1/snapshots/poll", {}, format="json").status_code == 401
    assert client.get("/api/v1/snapshots/current").status_code == 401


def test_a_change_by_session_needs_the_csrf_token(db) -> None:
    user = User.objects.create_user("alice", password="x", role=User.Role.OPERATOR)
    client = APIClient(enforce_csrf_checks=True)
    client.force_login(user)
    body = {"id": "acme", "name": "Acme"}
    refused = client.post("/api/v1/tenants", body, format="json")
    assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied")
    client.cookies["csrftoken"] = "a" * 32
    assert client.post("/api/v1/tenants", body, format="json", headers={"x-csrftoken": "a" * 32}).status_code == 201


def test_an_account_switched_off_loses_access(bob) -> None:
    User.objects.update(is_active=False)
    assert bob.get("/api/v1/tenants").status_code == 401


@pytest.mark.parametrize(
    ("role", "may"), [(User.Role.VIEWER, False), (User.Role.OPERATOR, True), (User.Role.ADMIN, True)]
)
def test_the_role_decides_who_may_change(db, role: str, may: bool) -> None:
    client = APIClient()
    client.force_login(User.objects.create_user("dora", password="x", role=role))
    answer = client.post("/api/v1/tenants", {"id": "acme", "name": "Acme"}, format="json")
    assert answer.status_code == (201 if may else 403)


def test_the_docs_page_sends_strangers_to_sign_in(charlie) -> None:
    answer = charlie.get("/api/v1/docs")
    assert answer.status_code == 302 and "/accounts/login/" in answer["location"]

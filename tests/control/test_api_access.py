"""Who may call what: a matrix over every address of the API; an address without an entry fails."""

from __future__ import annotations

import pytest
from django.urls import URLPattern
from rest_framework.test import APIClient

from controlplane.api import urls
from controlplane.tenants.models import User

PATHS = {
    "api-tenants": ("/api/v1/tenants", "get post"),
    "api-tenant": ("/api/v1/tenants/acme", "get patch"),
    "api-tenant-status": ("/api/v1/tenants/acme/status", "post"),
    "api-namespaces": ("/api/v1/namespaces", "get post"),
    "api-namespace": ("/api/v1/namespaces/acme/support", "get patch"),
    "api-namespace-status": ("/api/v1/namespaces/acme/support/status", "post"),
    "api-namespace-rotate": ("/api/v1/namespaces/acme/support/rotate", "post"),
    "api-keys": ("/api/v1/keys", "get post"),
    "api-key": ("/api/v1/keys/000000000000", "get"),
    "api-key-revoke": ("/api/v1/keys/000000000000/revoke", "post"),
    "api-pools": ("/api/v1/pools", "get post"),
    "api-pool": ("/api/v1/pools/llama", "get patch delete"),
    "api-workers": ("/api/v1/workers", "get post"),
    "api-worker": ("/api/v1/workers/llama/w1", "get patch delete"),
    "api-worker-state": ("/api/v1/workers/llama/w1/state", "post"),
    "api-worker-test": ("/api/v1/workers/llama/w1/test", "post"),
    "api-watermarks": ("/api/v1/watermark-policies", "get"),
    "api-watermark": ("/api/v1/watermark-policies/global", "get put delete"),
    "api-snapshots": ("/api/v1/snapshots", "get"),
    "api-snapshot-current": ("/api/v1/snapshots/current", "get"),
    "api-snapshot-poll": ("/api/v1/snapshots/poll", "post"),
    "api-routers": ("/api/v1/routers", "get"),
    "api-audit": ("/api/v1/audit", "get"),
    "api-schema": ("/api/v1/schema", "get"),
}
PAGES = {"api-docs"}
"""Redirects to the sign-in page instead of answering 401."""
FOR_ROUTERS = {"api-snapshot-current", "api-snapshot-poll"}
CASES = [(name, path, method) for name, (path, methods) in PATHS.items() for method in methods.split()]


def test_every_address_has_an_entry() -> None:
    names = {pattern.name for pattern in urls.urlpatterns if isinstance(pattern, URLPattern) and pattern.name}
    assert names == set(PATHS) | PAGES


@pytest.mark.parametrize(("name", "path", "method"), CASES)
def test_a_stranger_gets_401_everywhere(charlie, name: str, path: str, method: str) -> None:
    answer = getattr(charlie, method)(path, {}, format="json")
    assert answer.status_code == 401
    if name != "api-schema":
        assert answer["content-type"] == "application/problem+json"
        assert answer["www-authenticate"] in ("Session", "Bearer")


@pytest.mark.parametrize(("name", "path", "method"), CASES)
def test_a_viewer_reads_and_changes_nothing(bob, name: str, path: str, method: str) -> None:
    answer = getattr(bob, method)(path, {}, format="json")
    if name == "api-snapshot-poll":
        assert answer.status_code == 401
    elif method == "get":
        assert answer.status_code in (200, 404)
    else:
        assert answer.status_code == 403


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

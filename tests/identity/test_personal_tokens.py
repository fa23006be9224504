"""Personal tokens: shown once, hashed, within scopes, until they expire or are revoked."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from controlplane.audit.models import AuditEntry
from controlplane.tenants.models import Membership, PersonalToken, User
from controlplane.tenants.token_services import TOKEN_PATTERN

SCOPES = ["namespaces.view", "namespaces.change"]


def _issue(api: APIClient, *, scopes: list[str] | None = None, days: float = 30) -> dict[str, str]:
    body = {"name": "ci", "scopes": scopes or SCOPES, "expires_at": (timezone.now() + timedelta(days=days)).isoformat()}
    answer = api.post("/api/v1/my/tokens", body, format="json")
    assert answer.status_code == 201, answer.content
    return dict(answer.json())


def _with(text: str) -> APIClient:
    client = APIClient(enforce_csrf_checks=True)
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {text}")
    return client


def test_it_is_shown_once_and_kept_as_a_keyed_hash(alice) -> None:
    issued = _issue(alice)
    assert TOKEN_PATTERN.fullmatch(issued["token"])
    secret = issued["token"].split("_", 2)[2]
    row = PersonalToken.objects.get()
    assert secret not in str(vars(row)) and secret not in str(list(AuditEntry.objects.values()))
    assert secret not in alice.get("/api/v1/my/tokens").content.decode()


def test_it_reads_and_changes_within_its_scopes_without_cookie_or_csrf_token(alice) -> None:
    api = _with(_issue(alice)["token"])
    assert api.get("/api/v1/namespaces").status_code == 200
    made = api.post("/api/v1/namespaces", {"tenant": "acme", "slug": "more"}, format="json")
    assert made.status_code == 201
    assert AuditEntry.objects.order_by("id").last().actor == "user:alice"
    assert api.get("/api/v1/keys").status_code == 403
    assert api.get("/api/v1/my/access").json() == {
        "user": "alice",
        "everywhere": [],
        "tenants": {"acme": sorted(SCOPES)},
    }


def test_it_never_has_more_than_its_owner_holds_at_that_moment(alice) -> None:
    refused = alice.post(
        "/api/v1/my/tokens",
        {"name": "x", "scopes": ["fleet.change"], "expires_at": (timezone.now() + timedelta(days=1)).isoformat()},
        format="json",
    )
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "scopes")
    api = _with(_issue(alice)["token"])
    Membership.objects.filter(user__username="alice").update(role="viewer")
    assert api.get("/api/v1/namespaces").status_code == 200
    assert api.post("/api/v1/namespaces", {"tenant": "acme", "slug": "more"}, format="json").status_code == 403


def test_it_cannot_make_or_revoke_tokens(alice) -> None:
    issued = _issue(alice)
    api = _with(issued["token"])
    assert api.get("/api/v1/my/tokens").status_code == 401
    assert api.post(f"/api/v1/my/tokens/{issued['id']}/revoke", {}, format="json").status_code == 401


def test_it_ends_when_it_expires(alice) -> None:
    issued = _issue(alice)
    PersonalToken.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert _with(issued["token"]).get("/api/v1/namespaces").status_code == 401


def test_it_ends_when_it_is_revoked_or_its_owner_switched_off(alice) -> None:
    revoked, kept = _issue(alice), _issue(alice)
    assert alice.post(f"/api/v1/my/tokens/{revoked['id']}/revoke", {}, format="json").status_code == 200
    assert _with(revoked["token"]).get("/api/v1/namespaces").status_code == 401
    assert _with(kept["token"]).get("/api/v1/namespaces").status_code == 200
    User.objects.filter(username="alice").update(is_active=False)
    assert _with(kept["token"]).get("/api/v1/namespaces").status_code == 401


def test_its_last_use_is_noted_once_a_minute(alice) -> None:
    api = _with(_issue(alice)["token"])
    api.get("/api/v1/namespaces")
    first = PersonalToken.objects.get().last_used_at
    api.get("/api/v1/namespaces")
    assert first is not None and PersonalToken.objects.get().last_used_at == first


@pytest.mark.parametrize("days", [-1, 367])
def test_it_has_an_expiry_within_a_year(alice, days: int) -> None:
    body = {"name": "x", "scopes": SCOPES, "expires_at": (timezone.now() + timedelta(days=days)).isoformat()}
    assert alice.post("/api/v1/my/tokens", body, format="json").status_code == 422


@pytest.mark.parametrize("change", [lambda text: text[:-1] + ("A" if text[-1] != "A" else "B"), lambda text: text + "x",
                                    lambda text: text.upper(), lambda text: "tmp_", lambda text: ""])  # fmt: skip
def test_another_text_opens_nothing(alice, change) -> None:
    answer = _with(change(_issue(alice)["token"])).get("/api/v1/namespaces")
    assert (answer.status_code, answer["www-authenticate"]) == (401, "Bearer")


def test_others_tokens_are_not_listed_and_cannot_be_revoked(alice, charlie) -> None:
    issued = _issue(alice)
    assert charlie.get("/api/v1/my/tokens").json()["items"] == []
    assert charlie.post(f"/api/v1/my/tokens/{issued['id']}/revoke", {}, format="json").status_code == 404

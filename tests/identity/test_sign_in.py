"""Sign-in: password, second factor, limited attempts, closed sign-up; the administration behind the same door."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal.auth import format_hotp_value, hotp_value, yield_hotp_counters_from_time
from django.core.cache import cache
from django.test import Client

from controlplane.tenants.models import User

PASSWORD = "correct horse battery staple"


@pytest.fixture(autouse=True)
def no_counts() -> Iterator[None]:
    cache.clear()
    yield
    cache.clear()


@pytest.fixture
def olga(db) -> User:
    return User.objects.create_user("olga", password=PASSWORD, role=User.Role.OPERATOR)


def _sign_in(client: Client, password: str = PASSWORD, name: str = "olga"):
    return client.post("/accounts/login/", {"login": name, "password": password})


def _code(secret: str) -> str:
    return format_hotp_value(hotp_value(secret, next(iter(yield_hotp_counters_from_time()))))


def _activate(client: Client) -> str:
    """Sets the second factor up as a user does, who shows the password again first; its secret."""
    assert client.get("/accounts/2fa/totp/activate/")["location"].startswith("/accounts/reauthenticate/")
    assert client.post("/accounts/reauthenticate/", {"password": PASSWORD}).status_code == 302
    page = client.get("/accounts/2fa/totp/activate/")
    secret = re.search(r'id="authenticator_secret"[^>]*value="([A-Z2-7]+)"', page.content.decode())[1]
    done = client.post("/accounts/2fa/totp/activate/", {"code": _code(secret)})
    assert done.status_code == 302, done.content
    return secret


def test_the_right_password_opens_and_a_wrong_one_does_not(client, olga) -> None:
    assert _sign_in(client, "wrong").status_code == 200 and client.get("/").status_code == 302
    assert _sign_in(client)["location"] == "/"
    assert client.get("/policies/").status_code == 200


def test_an_unknown_name_reads_like_a_wrong_password(client, olga) -> None:
    known, unknown = _sign_in(client, "wrong"), _sign_in(client, "wrong", name="nobody")

    def words(answer) -> str:
        text = re.sub(r'value="[^"]*"', "", answer.content.decode())
        return re.sub(r'nonce="[^"]*"', "", text)

    assert words(known) == words(unknown)


def test_attempts_are_limited(client, olga) -> None:
    answers = [_sign_in(client, f"wrong {number}") for number in range(7)]
    assert any("Too many" in answer.content.decode() or answer.status_code == 429 for answer in answers)
    assert _sign_in(client).status_code in (200, 429) and client.get("/policies/").status_code == 302


def test_with_a_second_factor_the_password_alone_does_not_open(client, olga) -> None:
    _sign_in(client)
    secret = _activate(client)
    other = Client()
    stage = _sign_in(other)
    assert stage["location"].startswith("/accounts/2fa/authenticate/")
    assert other.get("/policies/").status_code == 302
    assert other.post("/accounts/2fa/authenticate/", {"code": "000000"}).status_code == 200
    assert other.get("/policies/").status_code == 302
    cache.clear()  # the code that activated it may not be used twice
    assert other.post("/accounts/2fa/authenticate/", {"code": _code(secret)}).status_code == 302
    assert other.get("/policies/").status_code == 200


def test_a_recovery_code_opens_once(client, olga) -> None:
    _sign_in(client)
    _activate(client)
    text = client.get("/accounts/2fa/recovery-codes/").content.decode()
    code = re.findall(r"\b[0-9a-f]{8}\b|\b\d{8}\b", text)[0]
    for expected in (302, 200):
        other = Client()
        _sign_in(other)
        assert other.post("/accounts/2fa/authenticate/", {"code": code}).status_code == expected


def test_the_database_holds_no_readable_second_factor(client, olga) -> None:
    _sign_in(client)
    secret = _activate(client)
    rows = str(list(Authenticator.objects.values_list("type", "data")))
    assert "totp" in rows and secret not in rows


@pytest.mark.parametrize(
    "page",
    ["/accounts/2fa/", "/accounts/2fa/totp/activate/", "/accounts/password/change/", "/accounts/logout/", "/account/"],
)
def test_pages_of_the_account_have_the_projects_look_and_obey_the_policy(client, olga, page: str) -> None:
    _sign_in(client)
    client.post("/accounts/reauthenticate/", {"password": PASSWORD})
    answer = client.get(page)
    html = answer.content.decode()
    assert answer.status_code == 200 and "css/tidemark.css" in html
    assert "<style" not in html and not re.search(r"<script(?![^>]*src=)[^>]*>\s*\S", html) and " style=" not in html
    assert "unsafe-inline" not in answer["content-security-policy"]


def test_nobody_signs_up(client, db) -> None:
    answer = client.post("/accounts/signup/", {"username": "mallory", "password1": PASSWORD, "password2": PASSWORD})
    assert "made by administrators" in answer.content.decode()
    assert not User.objects.filter(username="mallory").exists()


def test_the_administration_has_no_door_of_its_own(client, olga) -> None:
    answer = client.post("/admin/login/", {"username": "olga", "password": PASSWORD})
    assert answer.status_code == 302 and answer["location"].startswith("/accounts/login/")
    _sign_in(client)
    assert client.get("/admin/login/").status_code == 403


def test_a_token_is_made_shown_once_and_revoked_on_the_account_page(client, olga) -> None:
    _sign_in(client)
    made = client.post("/account/", {"name": "ci", "days": "30", "scopes": ["fleet.view"]})
    text = re.search(r"tmp_[0-9a-z]{12}_[A-Za-z0-9_-]{43}", made.content.decode())[0]
    assert "no-store" in made["cache-control"]
    api = Client()
    assert api.get("/api/v1/pools", headers={"authorization": f"Bearer {text}"}).status_code == 200
    page = client.get("/account/").content.decode()
    assert text not in page and text[:16] in page
    client.post(f"/account/tokens/{text[4:16]}/revoke/")
    assert api.get("/api/v1/pools", headers={"authorization": f"Bearer {text}"}).status_code == 401


@pytest.mark.parametrize("form", [{"name": "", "days": "30"}, {"name": "x", "days": "9999"},
                                  {"name": "x", "days": "30", "scopes": ["members.change"]}])  # fmt: skip
def test_a_token_that_cannot_be_made_is_refused_with_the_reason(client, olga, form: dict[str, object]) -> None:
    _sign_in(client)
    answer = client.post("/account/", {"scopes": ["fleet.view"]} | form)
    assert answer.status_code == 422 and "tmp_" not in answer.content.decode().replace("Bearer tmp_…", "")

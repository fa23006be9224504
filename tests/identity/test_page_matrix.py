"""Role × page × method: the reviewed table `pages.txt` is what happens on the dashboard (S14)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import transaction
from django.test import Client
from django.urls import URLPattern

from controlplane.tenants.roles import Role
from dashboard import fragments, urls
from tests.identity.world import OWN, make_user, make_world

pytestmark = pytest.mark.django_db

ARGUMENTS = {
    "name": "fleet",
    "worker_id": "llama/w1",
    "state": "drain",
    "kind": "global",
    "step": "advance",
    "tenant": "acme",
    "slug": "none",
    "version": "1",
    "request_id": "none",
    "token_id": "none",
    "view_id": "1",
    "violation_id": "1",
    "alert_id": "1",
    "note_id": "1",
    "silence_id": "1",
    "form": "csv",
    "delivery_id": "1",
    "letter_id": "1",
    "finding_id": "1",
    "rollout_id": "1",
    "change_id": "1",
    "schedule_id": "1",
    "run_id": "1",
    "format": "json",
    "subject_id": "1",
    "token": "none",
    "pool": "llama",
    "prefix": "0" * 16,
    "placement_id": "1",
    "scope": "global",
    "number": "1",
    "wanted": "suspended",
    "key_id": "acmekey00000",
    "epoch": "101",
    "what_if_id": "1",
}
OTHER_ARGUMENTS = {
    "report-step": {"step": "retry"},
    "alert-rule": {"slug": "hits-of-acme"},
    "webhook-step": {"slug": "pager", "step": "disable"},
    "revoke": {"kind": "namespace", "subject": "acme/support"},
    "policy-of": {"kind": "pool", "name": "llama"},
    "routing-policy": {"kind": "pool", "name": "llama"},
    "panel-fragment": {"name": "tiles"},
    "chart-table": {"name": "sources"},
    "chart-csv": {"name": "sources"},
}
TABLE_FILE = Path(__file__).with_name("pages.txt")
PATTERNS = {str(pattern.name): pattern for pattern in urls.urlpatterns if isinstance(pattern, URLPattern)}
CALLS = [(name, method) for name in PATTERNS for method in ("get", "post")]


def _table() -> dict[tuple[str, str], str]:
    rows = (line.split() for line in TABLE_FILE.read_text().splitlines() if line.strip() and line[0] != "#")
    return {(name, method): f"{fleet} {inside} {without}" for name, method, fleet, inside, without in rows}


@pytest.fixture(scope="module")
def callers(django_db_setup, django_db_blocker) -> Iterator[list[list[Client]]]:
    """A role in the whole fleet, role by role; a role in acme, role by role; an account without a role, and nobody."""
    with django_db_blocker.unblock(), transaction.atomic():
        make_world()
        yield [
            [_signed_in(role) for role in Role],
            [_signed_in(role, tenant=OWN) for role in Role],
            [_signed_in(None), Client()],
        ]
        transaction.set_rollback(True)


def _signed_in(role: Role | None, *, tenant: str = "") -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(make_user(f"{role or 'nobody'}-{tenant or 'fleet'}", role, tenant=tenant))
    return client


def _path(pattern: URLPattern) -> str:
    path = "/" + str(pattern.pattern)
    for name in pattern.pattern.converters:
        value = OTHER_ARGUMENTS.get(str(pattern.name), {}).get(name) or ARGUMENTS[name]
        path = path.replace(f"<{_prefix(path, name)}{name}>", value)
    return path


def _prefix(path: str, name: str) -> str:
    return next(kind for kind in ("slug:", "path:", "int:", "str:", "") if f"<{kind}{name}>" in path)


def _letter(client: Client, method: str, path: str) -> str:
    """+ allowed (whatever else the answer finds wrong), - forbidden or sent to sign in, . no such method."""
    fragments.forget()
    with transaction.atomic():
        answer = getattr(client, method)(path)
        transaction.set_rollback(True)
    assert answer.status_code < 500, (path, answer.content[:500])
    to_sign_in = answer.status_code == 302 and "/accounts/login/" in answer["location"]
    return "-" if answer.status_code == 403 or to_sign_in else "." if answer.status_code == 405 else "+"


def test_every_page_has_its_lines() -> None:
    assert set(_table()) == set(CALLS)


@pytest.mark.parametrize(("name", "method"), CALLS)
def test_the_table_is_what_happens(callers: list[list[Client]], name: str, method: str) -> None:
    path = _path(PATTERNS[name])
    happened = " ".join("".join(_letter(client, method, path) for client in group) for group in callers)
    assert happened == _table().get((name, method)), f"the line would be: {name} {method} {happened}"

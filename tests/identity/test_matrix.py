"""Role × address × method × (own, other): the reviewed table `matrix.txt` is what happens (S14)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from django.db import transaction
from django.urls import URLPattern
from rest_framework.test import APIClient

from controlplane.api import urls
from controlplane.snapshots.services import publish_pending
from controlplane.tenants.roles import ROLES, Capability, Role, access_from, carried
from tests.identity.matrix import ADDRESSES, Address, lines
from tests.identity.world import OWN, caller, make_world

pytestmark = pytest.mark.django_db

METHODS = ("get", "post", "put", "patch", "delete")
VIEWS = {pattern.name: pattern.callback for pattern in urls.urlpatterns if isinstance(pattern, URLPattern)}
NAMED = {name: view for name, view in VIEWS.items() if name and name != "api-docs"}  # a page, which redirects
CALLS = [(name, method) for name, view in NAMED.items() for method in METHODS if hasattr(view.view_class, method)]  # type: ignore[attr-defined]
OPEN_TO_ACCOUNTS = {"api-schema"} | {name for name in NAMED if name.startswith("api-my-")}
"""What every account may call, whatever its role."""
TABLE = lines()


@dataclass(frozen=True, slots=True)
class Callers:
    fleet: list[APIClient]
    """A role in the whole fleet, role by role."""
    inside: list[APIClient]
    """A role in acme, role by role."""
    without: list[APIClient]
    """An account without a role, and nobody."""


@pytest.fixture(scope="module")
def callers(django_db_setup, django_db_blocker) -> Iterator[Callers]:
    """One world for the whole module: each call is taken back."""
    with django_db_blocker.unblock(), transaction.atomic():
        make_world()
        publish_pending()
        yield Callers(
            fleet=[caller(role) for role in Role],
            inside=[caller(role, tenant=OWN) for role in Role],
            without=[caller(None), APIClient()],
        )
        transaction.set_rollback(True)


def _letter(client: APIClient, method: str, path: str, body: object) -> str:
    """+ allowed (whatever else the answer finds wrong), - forbidden, 0 not to be seen."""
    with transaction.atomic():
        answer = getattr(client, method)(f"/api/v1/{path}", body, format="json", headers={"if-match": "*"})
        transaction.set_rollback(True)
    return {401: "-", 403: "-", 404: "0"}.get(answer.status_code, "+")


def _row(clients: list[APIClient], method: str, path: str, body: object) -> str:
    data = None if method == "get" else body
    return "".join(_letter(client, method, path, data) for client in clients)


def test_every_call_has_its_line_and_every_line_its_call() -> None:
    assert set(ADDRESSES) == set(NAMED)
    assert set(TABLE) == set(CALLS)


@pytest.mark.parametrize(("name", "method"), CALLS)
def test_the_table_is_what_happens(callers: Callers, name: str, method: str) -> None:
    address = ADDRESSES.get(name, Address(own=""))
    own, other = address.bodies.get(method, ({}, {}))
    has_other = bool(address.other) and (address.own != address.other or method in address.bodies)
    happened = " ".join(
        (
            _row(callers.fleet, method, address.own, own),
            _row(callers.inside, method, address.own, own),
            _row(callers.inside, method, address.other, other) if has_other else ".....",
        )
    )
    assert happened == TABLE.get((name, method)), f"the line would be: {name} {method} {happened}"
    letters = "+-" if name in OPEN_TO_ACCOUNTS else "--"
    assert _row(callers.without, method, address.own, own) == letters, "without a role, without an account"


def test_a_view_that_says_nothing_is_closed_to_everybody() -> None:
    from controlplane.api.base import ApiView

    assert (ApiView.needs.read, ApiView.needs.change) == (None, None)


def test_a_role_in_one_tenant_carries_nothing_of_the_fleet() -> None:
    for role in Role:
        held = carried(role, "acme")
        assert Capability.FLEET_VIEW not in held and Capability.LIMITS_CHANGE not in held
        assert held <= ROLES[role]


def test_an_unknown_role_carries_nothing() -> None:
    access = access_from([("emperor", ""), ("emperor", "acme")])
    assert not any(access.may_somewhere(capability) for capability in Capability)


def test_nobody_grants_more_than_they_have() -> None:
    tenant_admin = access_from([("tenant_admin", "acme")])
    assert tenant_admin.covers(Role.VIEWER, "acme") and tenant_admin.covers(Role.TENANT_ADMIN, "acme")
    assert not tenant_admin.covers(Role.VIEWER, "globex") and not tenant_admin.covers(Role.VIEWER)
    assert not tenant_admin.covers(Role.OPERATOR, "acme")

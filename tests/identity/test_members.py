"""Members: roles are granted and withdrawn with an audit entry, and nobody grants more than they hold."""

from __future__ import annotations

import pytest

from controlplane.audit.models import AuditEntry
from controlplane.tenants.models import Membership, User
from controlplane.tenants.roles import Role
from tests.identity.conftest import signed_in
from tests.identity.world import MEMBERS, make_user


@pytest.fixture
def dora(db) -> User:
    return make_user("dora", None)


def _grant(api, role: str, tenant: str | None, user: str = "dora"):
    return api.post("/api/v1/members", {"user": user, "role": role, "tenant": tenant}, format="json")


def test_a_granted_role_opens_and_a_withdrawn_one_closes(alice, dora) -> None:
    granted = _grant(alice, "viewer", "acme")
    assert granted.status_code == 201
    assert signed_in(dora).get("/api/v1/tenants/acme").status_code == 200
    assert alice.delete(f"/api/v1/members/{granted.json()['id']}").status_code == 204
    assert signed_in(dora).get("/api/v1/tenants/acme").status_code == 403
    actions = AuditEntry.objects.filter(object_id="dora@acme").order_by("id").values_list("action", flat=True)
    assert list(actions) == ["member.grant", "member.withdraw"]


def test_another_role_takes_the_place_of_the_first(alice, dora) -> None:
    first, second = _grant(alice, "viewer", "acme").json(), _grant(alice, "tenant_admin", "acme").json()
    assert first["id"] == second["id"] and second["role"] == "tenant_admin"
    assert Membership.objects.filter(user=dora).count() == 1


@pytest.mark.parametrize(
    ("role", "tenant", "status"),
    [
        ("operator", "acme", 403),  # carries isolation.change, which a tenant's administrator does not hold
        ("admin", "acme", 403),
        ("viewer", None, 403),
        ("admin", None, 403),
        ("viewer", "globex", 404),
        ("viewer", "none", 404),
        ("emperor", "acme", 422),
    ],
)
def test_nobody_grants_more_than_they_hold(alice, dora, role: str, tenant: str | None, status: int) -> None:
    assert _grant(alice, role, tenant).status_code == status
    assert not Membership.objects.filter(user=dora).exists()


def test_nobody_replaces_or_withdraws_a_role_above_their_own(alice) -> None:
    boss = make_user("boss", Role.ADMIN, tenant="acme")
    assert _grant(alice, "viewer", "acme", user="boss").status_code == 403
    assert alice.delete(f"/api/v1/members/{boss.memberships.get().pk}").status_code == 403
    assert boss.memberships.get().role == "admin"


def test_members_of_other_tenants_and_of_the_fleet_are_not_shown(alice, olga) -> None:
    shown = alice.get("/api/v1/members").json()["items"]
    assert {row["tenant"] for row in shown} == {"acme"}
    assert alice.get(f"/api/v1/members/{MEMBERS['globex']}").status_code == 404
    assert olga.get("/api/v1/members").status_code == 403


def test_a_user_has_one_role_at_a_place(world, dora) -> None:
    root = signed_in(make_user("root", Role.ADMIN))
    assert _grant(root, "viewer", None).status_code == 201
    assert _grant(root, "operator", "acme").status_code == 201
    access = User.objects.get(pk=dora.pk).access
    assert access.may("fleet.view") and access.may("namespaces.change", "acme")
    assert not access.may("namespaces.change", "globex")

"""Accounts made, changed and removed in the administration leave audit entries, without passwords."""

from __future__ import annotations

import pytest
from django.test import Client

from controlplane.audit.models import AuditEntry
from controlplane.tenants.models import User

PASSWORD = "correct horse battery staple"


@pytest.fixture
def root(db) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root", password="x"))
    return client


def test_an_account_leaves_a_trail_from_making_to_removal(root) -> None:
    form = {"username": "dora", "password1": PASSWORD, "password2": PASSWORD, "usable_password": "true"}
    inline = {f"memberships-{name}": 0 for name in ("TOTAL_FORMS", "INITIAL_FORMS", "MIN_NUM_FORMS", "MAX_NUM_FORMS")}
    assert root.post("/admin/tenants/user/add/", form | inline).status_code == 302
    dora = User.objects.get(username="dora")
    change = {"username": "dora", "is_active": "on", "is_superuser": "on", "time_zone": "",
              "date_joined_0": "2026-01-01", "date_joined_1": "00:00:00"}  # fmt: skip
    assert root.post(f"/admin/tenants/user/{dora.pk}/change/", change | inline).status_code == 302
    assert root.post(f"/admin/tenants/user/{dora.pk}/delete/", {"post": "yes"}).status_code == 302
    trail = list(AuditEntry.objects.filter(object_type="user", object_id="dora").order_by("id"))
    assert [entry.action for entry in trail] == ["user.create", "user.update", "user.delete"]
    assert {entry.actor for entry in trail} == {"user:root"}
    assert (trail[1].before["is_superuser"], trail[1].after["is_superuser"]) == (False, True)
    assert PASSWORD not in str([vars(entry) for entry in trail])

"""A change whose audit entry cannot be written does not happen (A18)."""

from __future__ import annotations

import pytest
from django.db import OperationalError

from controlplane.audit.models import AuditEntry
from controlplane.tenants.models import Tenant


@pytest.mark.django_db
def test_a_change_whose_audit_entry_cannot_be_written_is_refused(alice, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OperationalError("database or disk is full")

    entries = AuditEntry.objects.count()
    with monkeypatch.context() as patched:
        patched.setattr(AuditEntry, "save", full)
        answer = alice.post("/api/v1/tenants", {"id": "acme", "name": "Acme"}, format="json")
    assert answer.status_code == 503 and int(answer["retry-after"]) >= 1
    assert not Tenant.objects.exists() and AuditEntry.objects.count() == entries
    assert alice.post("/api/v1/tenants", {"id": "acme", "name": "Acme"}, format="json").status_code == 201

"""The audit log: whole, append-only, and every way of tampering is found at its first bad row (S24)."""

from __future__ import annotations

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from controlplane.audit.models import AppendOnly, AuditEntry, AuditHead
from controlplane.audit.services import record
from controlplane.audit.verification import verify_chain


def _write(count: int) -> None:
    for number in range(1, count + 1):
        record(
            actor="user:alice",
            action="thing.change",
            object_type="thing",
            object_id=str(number),
            before={"n": number - 1, "share": 0.85, "big": 1e16, "text": "é\u202e"},
            after=None,
            affects_routing=False,
        )


def _sql(statement: str, *params: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, params)


@pytest.fixture
def entries(db) -> None:
    _write(5)


def test_it_verifies_what_it_wrote(entries) -> None:
    verdict = verify_chain()
    assert (verdict.entries, verdict.bad_id) == (5, None)
    call_command("verify_audit")


def test_an_empty_log_is_whole(db) -> None:
    assert verify_chain().bad_id is None


TAMPERINGS = {
    "flip": ("UPDATE audit_auditentry SET actor = 'user:mallory' WHERE id = 3", 3),
    "flip_json": ("UPDATE audit_auditentry SET before = '{\"n\": 9}' WHERE id = 2", 2),
    "flip_flag": ("UPDATE audit_auditentry SET affects_routing = NOT affects_routing WHERE id = 4", 4),
    "delete_first": ("DELETE FROM audit_auditentry WHERE id = 1", 1),
    "delete_middle": ("DELETE FROM audit_auditentry WHERE id = 3", 3),
    "truncate": ("DELETE FROM audit_auditentry WHERE id >= 4", 4),
    "truncate_all": ("DELETE FROM audit_auditentry", 1),
    "drop_head": ("DELETE FROM audit_audithead", 5),
    "move_head": ("UPDATE audit_audithead SET last_id = 4", 5),
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_it_names_the_first_bad_entry(entries, name: str) -> None:
    statement, bad_id = TAMPERINGS[name]
    _sql(statement)
    assert verify_chain().bad_id == bad_id
    with pytest.raises(CommandError, match=f"audit entry {bad_id}:"):
        call_command("verify_audit")


def test_reordering_is_found(entries) -> None:
    _sql("UPDATE audit_auditentry SET id = 99 WHERE id = 2")
    _sql("UPDATE audit_auditentry SET id = 2 WHERE id = 3")
    _sql("UPDATE audit_auditentry SET id = 3 WHERE id = 99")
    assert verify_chain().bad_id == 2


def test_a_whole_chain_rewritten_without_the_fleet_key_is_found(entries, settings) -> None:
    _sql("DELETE FROM audit_auditentry")
    _sql("DELETE FROM audit_audithead")
    genuine, settings.FLEET_KEY = settings.FLEET_KEY, type(settings.FLEET_KEY)(b"m" * 32)
    _write(5)
    assert verify_chain().bad_id is None
    settings.FLEET_KEY = genuine
    assert "signature" in verify_chain().fault


def test_entries_cannot_be_changed_or_removed_through_the_orm(entries) -> None:
    entry = AuditEntry.objects.get(id=2)
    entry.actor = "user:mallory"
    for attempt in (
        entry.save,
        entry.delete,
        AuditEntry.objects.all().delete,
        lambda: AuditEntry.objects.filter(id=2).update(actor="x"),
        lambda: AuditEntry.objects.bulk_update([entry], ["actor"]),
        lambda: AuditEntry.objects.bulk_create([entry]),
    ):
        with pytest.raises(AppendOnly):
            attempt()
    assert verify_chain().bad_id is None


@pytest.mark.django_db(transaction=True)
def test_it_refuses_to_write_outside_a_transaction() -> None:
    with pytest.raises(RuntimeError):
        _write(1)


@pytest.mark.django_db(transaction=True)
def test_a_change_that_is_rolled_back_leaves_no_entry_and_no_gap() -> None:
    with transaction.atomic():
        _write(1)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        _write(2)
        _ = 1 / 0
    with transaction.atomic():
        _write(1)
    assert list(AuditEntry.objects.order_by("id").values_list("id", flat=True)) == [1, 2]
    assert verify_chain().bad_id is None


def test_the_head_counts_the_entries(entries) -> None:
    assert AuditHead.objects.get().last_id == AuditEntry.objects.count() == 5

"""Notes on a range of time: written and deleted by operators, audited, read by who sees the charts they stand on."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import QuerySet

from controlplane.audit.services import record
from controlplane.errors import Conflict, Invalid, NotFound
from controlplane.saving import save_checked
from controlplane.tenants.models import Tenant
from controlplane.workspace.models import RangeNote

NOTES_MAX = 5000
"""Of the whole installation: a chart asks for those of its range each time that it is drawn."""
SPAN_MAX = timedelta(days=31)


def notes_within(begin: datetime, end: datetime, *, tenant: str = "") -> QuerySet[RangeNote]:
    """Those that touch the range. With a tenant: its own alone."""
    rows = RangeNote.objects.filter(begins_at__lt=end, ends_at__gt=begin)
    return rows.filter(tenant=tenant) if tenant else rows


@transaction.atomic
def add_note(*, actor: str, begins_at: datetime, ends_at: datetime, text: str, tenant: str = "") -> RangeNote:
    """A note on the charts of the fleet, or of one tenant. Raises Invalid naming the field, NotFound, Conflict."""
    if not timedelta(0) < ends_at - begins_at <= SPAN_MAX:
        raise Invalid.field("ends_at", f"The end lies after the beginning, at most {SPAN_MAX.days} days.")
    if tenant and not Tenant.objects.filter(slug=tenant).exists():
        raise NotFound("There is no such tenant.")
    if RangeNote.objects.count() >= NOTES_MAX:
        raise Conflict(f"There are {NOTES_MAX} notes. Delete some first.")
    note = RangeNote(begins_at=begins_at, ends_at=ends_at, text=text.strip(), tenant=tenant, author=actor[:200])
    save_checked(note)
    _record(note, "note.add", actor, before=None, after=_facts(note))
    return note


@transaction.atomic
def delete_note(*, actor: str, note_id: int) -> RangeNote:
    """Raises NotFound."""
    note = RangeNote.objects.select_for_update().filter(pk=note_id).first()
    if note is None:
        raise NotFound("There is no such note.")
    facts = _facts(note)
    _record(note, "note.delete", actor, before=facts, after=None)
    note.delete()
    return note


def _facts(note: RangeNote) -> dict[str, object]:
    return {
        "begins_at": note.begins_at.isoformat(),
        "ends_at": note.ends_at.isoformat(),
        "tenant": note.tenant,
        "text": note.text,
    }


def _record(
    note: RangeNote, action: str, actor: str, *, before: dict[str, object] | None, after: dict[str, object] | None
) -> None:
    record(
        actor=actor, action=action, object_type="note", object_id=str(note.pk), before=before, after=after,
        affects_routing=False,
    )  # fmt: skip

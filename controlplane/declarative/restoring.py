"""What exports with secrets bring back onto objects that the same apply created, never onto one that was there:
a generation that was rotated away, or a key that was revoked, must not return by an old file."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from django.db.models import Model

from controlplane.audit.services import record
from controlplane.declarative.kind import Change
from controlplane.saving import save_checked


def restore(row: Model, values: Mapping[str, object], *, object_type: str, object_id: str, change: Change) -> None:
    """Sets the fields and records which, without their values: they are secret, or told by the creation already."""
    for name, value in values.items():
        setattr(row, name, value)
    save_checked(row)
    record(
        actor=change.actor, action=f"{object_type}.restore", object_type=object_type, object_id=object_id,
        before=None, after={"fields": sorted(values)}, affects_routing=True, reason=change.reason,
    )  # fmt: skip


def moment_text(at: datetime | None) -> str | None:
    """ISO 8601 in UTC to the microsecond, as much as the database keeps."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z") if at else None


def moment(text: str | None) -> datetime | None:
    """Raises ValueError, also for a time without a zone."""
    at = datetime.fromisoformat(text) if text else None
    if at is not None and at.tzinfo is None:
        raise ValueError("a time needs its zone: 2027-01-31T12:00:00Z")
    return at

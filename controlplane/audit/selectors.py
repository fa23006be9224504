"""The audit log as people search it: newest first, and what an entry changed, field by field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q, QuerySet

from controlplane.audit.models import AuditEntry, AuditHead, AuditVerification

VALUE_CHARS_MAX = 400
"""Of one value as shown; the export has it whole."""


@dataclass(frozen=True, slots=True)
class Search:
    """Empty fields and None = any."""

    actor: str = ""
    """With or without its kind: `olga` finds `user:olga`."""
    action: str = ""
    """A whole action, or its beginning: `namespace.`."""
    object: str = ""
    """An id, or its beginning."""
    request_id: str = ""
    since: datetime | None = None
    until: datetime | None = None

    @property
    def is_empty(self) -> bool:
        return self == Search()


@dataclass(frozen=True, slots=True)
class Change:
    field: str
    before: str
    after: str


def entries(search: Search, *, visible: Q | None = None) -> QuerySet[AuditEntry]:
    """`visible`: of whom to whom not all is shown, what is."""
    rows = AuditEntry.objects.order_by("-id")
    if visible is not None:
        rows = rows.filter(visible)
    if search.actor:
        rows = rows.filter(actor__in=(search.actor, f"user:{search.actor}", f"token:{search.actor}"))
    if search.action:
        rows = rows.filter(action__startswith=search.action)
    if search.object:
        rows = rows.filter(object_id__startswith=search.object)
    if search.request_id:
        rows = rows.filter(request_id=search.request_id)
    if search.since:
        rows = rows.filter(at__gte=search.since)
    if search.until:
        rows = rows.filter(at__lt=search.until)
    return rows


def changes(entry: AuditEntry) -> list[Change]:
    """Fields that differ; all of them of what came into being or went."""
    return list(_changes(entry.before, entry.after))


def _changes(before: object, after: object) -> Iterator[Change]:
    old = before if isinstance(before, dict) else {}
    new = after if isinstance(after, dict) else {}
    for name in dict.fromkeys((*old, *new)):
        if name not in old or name not in new or old[name] != new[name]:
            yield Change(str(name), _text(old, name), _text(new, name))


def _text(values: dict[str, object], name: str) -> str:
    if name not in values:
        return ""
    value = values[name]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[:VALUE_CHARS_MAX]}…"


def last_verification() -> AuditVerification | None:
    return AuditVerification.objects.first()


def head() -> AuditHead | None:
    return AuditHead.objects.first()

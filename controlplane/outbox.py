"""The life of a delivery, by mail or by webhook: pending until it is taken, or dead after its last attempt.

Rows have `state`, `attempts`, `next_attempt_at` and `finished_at`. An attempt is claimed by one conditional update, and
counted before it is made: one whose process died is used up as well, and made again when its lease has passed.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import F, Model, QuerySet

from controlplane.errors import Conflict

PENDING: Final = "pending"
DELIVERED: Final = "delivered"
DEAD: Final = "dead"
WAITS_S = (10, 60, 300, 1800, 7200, 21600)
"""Before the second attempt, the third …: about nine hours, then it is given up."""
ATTEMPTS_MAX = len(WAITS_S) + 1
NEVER_ENDED = "The last attempt never ended."
SETTLED_FIELDS = ("state", "next_attempt_at", "finished_at")


def due[Row: Model](rows: QuerySet[Row], *, at: datetime, limit: int) -> list[int]:
    """Ids of those whose next attempt is due, the longest waiting first."""
    found = rows.filter(state=PENDING, next_attempt_at__lte=at).order_by("next_attempt_at")
    return list(found.values_list("pk", flat=True)[:limit])


def claim[Row: Model](rows: QuerySet[Row], row_id: int, *, at: datetime, lease: timedelta) -> Row | None:
    """The row, for this process alone until the lease ends; None when it is not due, or another process has it."""
    claimed = rows.model._default_manager.filter(pk=row_id, state=PENDING, next_attempt_at__lte=at).update(
        attempts=F("attempts") + 1, next_attempt_at=at + lease
    )
    return rows.filter(pk=row_id).first() if claimed else None


def is_used_up(row: Any) -> bool:  # Any: a row of any app's deliveries
    """Whether the claimed attempt is one too many: every earlier one was begun, and none ended."""
    return bool(row.attempts > ATTEMPTS_MAX)


def settle(row: Any, *, ok: bool, at: datetime, attempts_max: int = ATTEMPTS_MAX) -> None:
    """Sets SETTLED_FIELDS by what became of the attempt; the caller saves."""
    if ok:
        row.state, row.next_attempt_at, row.finished_at = DELIVERED, None, at
    elif row.attempts >= attempts_max:
        row.state, row.next_attempt_at, row.finished_at = DEAD, None, at
    else:
        row.next_attempt_at = at + timedelta(seconds=WAITS_S[row.attempts - 1])


def renew(row: Any, *, at: datetime) -> str:
    """A fresh round of attempts by hand, saved; the state before. Raises Conflict while one waits."""
    if row.state == PENDING:
        raise Conflict("It waits for its next attempt already.")
    before = str(row.state)
    row.state, row.attempts, row.finished_at, row.next_attempt_at = PENDING, 0, None, at
    row.save()
    return before

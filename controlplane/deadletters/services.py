"""At most three deliveries of one piece of work, then a dead letter (S20).

Work is found by ticks that look at the database, so nothing is lost with a broker; but work that kills its process, or
always fails, would be found again for ever. Each delivery is counted before it begins, so that one that never returns
counts too. A dead letter is a finding, is tried anew after an hour, and at once when a person asks for it.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from django.db import transaction
from django.utils import timezone

from controlplane.audit.services import record
from controlplane.deadletters.models import TaskDelivery
from controlplane.errors import Conflict, NotFound
from controlplane.fleet.findings import Observation, observe, resolve

DELIVERIES_MAX = 3
REVIVED_AFTER = timedelta(hours=1)
KEPT_FOR = timedelta(days=30)
FINDING = "task_given_up"


@contextmanager
def bounded(task: str, subject: object) -> Iterator[bool]:
    """Whether the work may be done; it is ended when the body returns. Call it where no other process does the same."""
    name = str(subject)
    if not _begin(task, name):
        yield False
        return
    try:
        yield True
    except Exception as error:
        _failed(task, name, _place_of(error))
        raise
    _ended(task, name)


def retry(delivery_id: int, *, actor: str, request_id: str = "") -> TaskDelivery:
    """Lets a dead letter be found again by the next tick. Raises NotFound or Conflict."""
    with transaction.atomic():
        row = TaskDelivery.objects.select_for_update().filter(pk=delivery_id).first()
        if row is None:
            raise NotFound("There is no such dead letter.")
        if row.dead_at is None:
            raise Conflict("It was not given up.")
        row.deliveries, row.dead_at = 0, None
        row.save()
        record(
            actor=actor, action="task.retry", object_type="task", object_id=str(row)[:200], before=None,
            after={"error": row.error}, affects_routing=False, request_id=request_id,
        )  # fmt: skip
    return row


def forget_old() -> int:
    """Deletes rows of work that nothing has asked for in a long time. How many."""
    return TaskDelivery.objects.filter(last_at__lt=timezone.now() - KEPT_FOR).delete()[0]


def _begin(task: str, subject: str) -> bool:
    now = timezone.now()
    with transaction.atomic():
        TaskDelivery.objects.get_or_create(task=task, subject=subject, defaults={"first_at": now, "last_at": now})
        row = TaskDelivery.objects.select_for_update().get(task=task, subject=subject)
        if row.dead_at is not None and now - row.dead_at < REVIVED_AFTER:
            return False
        if row.dead_at is not None:
            row.deliveries, row.dead_at = 0, None
        if row.deliveries >= DELIVERIES_MAX:  # the last of them never returned
            _give_up(row, row.error or "its process died")
            return False
        row.deliveries, row.last_at, row.error = row.deliveries + 1, now, ""
        row.save()
    return True


def _failed(task: str, subject: str, error: str) -> None:
    with transaction.atomic():
        row = TaskDelivery.objects.select_for_update().filter(task=task, subject=subject).first()
        if row is None:
            return
        row.error = error
        if row.deliveries >= DELIVERIES_MAX:
            _give_up(row, error)
        else:
            row.save()


def _ended(task: str, subject: str) -> None:
    TaskDelivery.objects.filter(task=task, subject=subject).delete()
    resolve([f"{task} {subject}"], [FINDING], at=timezone.now())


def _give_up(row: TaskDelivery, error: str) -> None:
    row.error, row.dead_at = error[:200], timezone.now()
    row.save()
    message = f"Given up after {row.deliveries} deliveries: {error}."
    observe([Observation(FINDING, str(row)[:200], message)], at=row.dead_at)


def _place_of(error: Exception) -> str:
    """`ValueError at canary_run.py:71`: its words may hold what must not be kept."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else "an unknown place"
    return f"{type(error).__name__} at {place}"[:200]

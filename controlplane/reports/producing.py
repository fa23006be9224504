"""From a run that is due to its figures and files: step by step, once, however often its process dies.

A run is claimed by its row, so that two workers never make the same one. Each begun attempt is counted beforehand
(`deadletters.bounded`): after three that did not end it is given up, a finding says so, and the run shows why.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from controlplane.audit.services import record
from controlplane.deadletters.models import TaskDelivery
from controlplane.deadletters.services import DELIVERIES_MAX, bounded
from controlplane.errors import Conflict, NotFound
from controlplane.reports import delivering
from controlplane.reports.figures.review import review
from controlplane.reports.models import Format, ReportFile, ReportRun
from controlplane.reports.rendering import NotRendered, render

State = ReportRun.State
SOFT_LIMIT_S = 280
LEASE = timedelta(seconds=SOFT_LIMIT_S + 40)
"""A run whose process died is begun again after this."""
WAITS_S = (30, 300)
"""Before the second attempt and the third."""
FILE_BYTES_MAX = 16 * 1024 * 1024
TASK = "report"
STEPS = (
    "requests", "capacity", "ranking", "forecast", "what-if", "recommendations", *(str(name) for name in Format.values),
)  # fmt: skip
"""What `ReportRun.step` names, in order."""


def make(run_id: int) -> str:
    """One attempt. The run's state afterwards; "" when it is not due, or another process has it."""
    now = timezone.now()
    due = Q(state=State.QUEUED) | Q(state=State.RUNNING)
    claimed = ReportRun.objects.filter(due, pk=run_id, next_attempt_at__lte=now).update(
        state=State.RUNNING, next_attempt_at=now + LEASE, attempts=F("attempts") + 1, step="", step_number=0, error=""
    )
    if not claimed:
        return ""
    run = ReportRun.objects.select_related("schedule").get(pk=run_id)
    try:
        with bounded(TASK, run_id) as allowed:
            if not allowed:
                return _give_up(run, "Its process ended before it was done, each time.")
            _finish(run, review(run, now=now, step=lambda name: _step(run, name)))
    except Exception as error:
        _failed(run, error)
        raise
    return str(run.state)


def retry(run_id: int, *, actor: str, request_id: str = "") -> ReportRun:
    """A run that was given up is made afresh. Raises NotFound or Conflict."""
    with transaction.atomic():
        run = ReportRun.objects.select_for_update().select_related("schedule").filter(pk=run_id).first()
        if run is None:
            raise NotFound("There is no such report.")
        if run.state != State.FAILED:
            raise Conflict("It was not given up.")
        TaskDelivery.objects.filter(task=TASK, subject=str(run_id)).delete()
        run.state, run.attempts, run.next_attempt_at, run.finished_at = State.QUEUED, 0, timezone.now(), None
        run.save()
        record(
            actor=actor, action="report.retry", object_type="report", object_id=run.schedule.slug, before=None,
            after={"run": run.pk}, affects_routing=False, request_id=request_id,
        )  # fmt: skip
    return run


def _step(run: ReportRun, name: str) -> None:
    run.step, run.step_number = name, STEPS.index(name) + 1
    run.save(update_fields=["step", "step_number"])


def _finish(run: ReportRun, figures: dict[str, Any]) -> None:
    """Renders outside of the transaction, then everything becomes visible at once, deliveries with it."""
    files = [_file(run, figures, str(name)) for name in run.settings["formats"]]
    with transaction.atomic():
        run.files.all().delete()
        ReportFile.objects.bulk_create(files)
        run.figures, run.state, run.step, run.step_number = figures, State.DONE, "", len(STEPS)
        run.next_attempt_at, run.finished_at = None, timezone.now()
        run.save()
        delivering.begin(run)


def _file(run: ReportRun, figures: dict[str, Any], name: str) -> ReportFile:
    """A format that cannot be made here is a row that says so: the others are not held up."""
    _step(run, name)
    try:
        content = render(name, figures)
    except NotRendered as error:
        return ReportFile(run=run, format=name, error=str(error)[:300])
    if len(content) > FILE_BYTES_MAX:
        return ReportFile(run=run, format=name, error=f"It has more than {FILE_BYTES_MAX:,} bytes.")
    return ReportFile(run=run, format=name, content=content, bytes=len(content))


def _failed(run: ReportRun, error: Exception) -> None:
    """The exception's type only: its words may hold what must not be kept."""
    words = f"{type(error).__name__} while making: {run.step or 'nothing yet'}."
    if run.attempts >= DELIVERIES_MAX:
        _give_up(run, words)
        return
    wait_s = WAITS_S[min(run.attempts, len(WAITS_S)) - 1]
    ReportRun.objects.filter(pk=run.pk).update(
        state=State.QUEUED, error=words, next_attempt_at=timezone.now() + timedelta(seconds=wait_s)
    )


def _give_up(run: ReportRun, words: str) -> str:
    run.state, run.error, run.next_attempt_at, run.finished_at = State.FAILED, words[:300], None, timezone.now()
    run.save(update_fields=["state", "error", "next_attempt_at", "finished_at"])
    return str(run.state)

"""Beat's tick: each due time of each schedule becomes one run, whoever looks and however often (A20).

The schedule's row is locked while its due time moves on, and (schedule, due time) is unique, so of two beats the second
finds nothing. After an outage the latest due time is made up for, once; the earlier ones are noted in its run.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from controlplane.reports import cron
from controlplane.reports.models import ReportRun, ReportSchedule
from controlplane.reports.services import run_values

KEPT_FOR = timedelta(days=400)
"""As long as the hours' rollups: figures of a run can be compared with their rows."""
RUNS_KEPT = 200
"""Of one schedule, the newest: an hourly one would otherwise keep ten thousand."""
DUE_MAX = 100
"""Schedules that one tick looks after."""
State = ReportRun.State


def begin_due(now: datetime | None = None) -> list[int]:
    """Ids of the runs that this call made."""
    now = now or timezone.now()
    waiting = ReportSchedule.objects.filter(enabled=True, next_due_at__lte=now).order_by("next_due_at")
    made = [_begin(schedule, now) for schedule in waiting.values_list("pk", flat=True)[:DUE_MAX]]
    return [run.pk for run in made if run is not None]


def next_to_make(now: datetime | None = None) -> int | None:
    """The run that is due to be made; None while another one is under way, or none waits."""
    now = now or timezone.now()
    if ReportRun.objects.filter(state=State.RUNNING, next_attempt_at__gt=now).exists():
        return None
    open_runs = ReportRun.objects.filter(Q(state=State.QUEUED) | Q(state=State.RUNNING), next_attempt_at__lte=now)
    return open_runs.order_by("next_attempt_at", "pk").values_list("pk", flat=True).first()


def forget_old(now: datetime | None = None) -> int:
    """Deletes runs past their retention, with files, deliveries and links. How many rows."""
    deleted = ReportRun.objects.filter(created_at__lt=(now or timezone.now()) - KEPT_FOR).delete()[0]
    for schedule in ReportSchedule.objects.values_list("pk", flat=True):
        runs = ReportRun.objects.filter(schedule=schedule).order_by("-id").values_list("pk", flat=True)
        beyond = list(runs[RUNS_KEPT : RUNS_KEPT + 1])
        if beyond:
            deleted += ReportRun.objects.filter(schedule=schedule, pk__lte=beyond[0]).delete()[0]
    return deleted


@transaction.atomic
def _begin(schedule: int, now: datetime) -> ReportRun | None:
    row = ReportSchedule.objects.select_for_update().filter(pk=schedule, enabled=True, next_due_at__lte=now).first()
    if row is None or row.next_due_at is None:  # another beat was first
        return None
    due, missed = cron.due_until(row.cron, row.time_zone, first=row.next_due_at, now=now)
    row.next_due_at = cron.next_due(row.cron, row.time_zone, after=due)
    row.save(update_fields=["next_due_at"])
    run, made = ReportRun.objects.get_or_create(
        schedule=row, due_at=due,
        defaults=run_values(row, now=now, to=due) | {"missed": [at.isoformat() for at in missed]},
    )  # fmt: skip
    return run if made else None

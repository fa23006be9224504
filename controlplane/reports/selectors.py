"""Which schedules and runs somebody may see, the tenants first."""

from __future__ import annotations

from collections.abc import Collection

from django.db.models import OuterRef, QuerySet, Subquery

from controlplane.errors import NotFound
from controlplane.reports.models import ReportRun, ReportSchedule, Scope

Tenants = Collection[str] | None
"""Slugs; None = whoever asks sees the whole fleet's."""


def schedules_of(tenants: Tenants) -> QuerySet[ReportSchedule]:
    """With `last_run`, `last_state` and `last_at` of the newest run."""
    rows = ReportSchedule.objects.all()
    if tenants is not None:
        rows = rows.filter(scope=Scope.TENANT, subject__in=tenants)
    newest = ReportRun.objects.filter(schedule=OuterRef("pk")).order_by("-id")
    return rows.annotate(
        last_run=Subquery(newest.values("pk")[:1]),
        last_state=Subquery(newest.values("state")[:1]),
        last_at=Subquery(newest.values("to_at")[:1]),
    )


def runs_of(tenants: Tenants) -> QuerySet[ReportRun]:
    """Without their figures, which are large."""
    rows = ReportRun.objects.select_related("schedule").defer("figures")
    return rows if tenants is None else rows.filter(tenant__in=tenants)


def find_schedule(schedule: int, tenants: Tenants) -> ReportSchedule:
    """Raises NotFound for what is not theirs to see too."""
    row = schedules_of(tenants).filter(pk=schedule).first()
    if row is None:
        raise NotFound("There is no such schedule.")
    return row


def find_run(run: int, tenants: Tenants) -> ReportRun:
    """With its figures. Raises NotFound for what is not theirs to see too."""
    rows = ReportRun.objects.select_related("schedule")
    row = (rows if tenants is None else rows.filter(tenant__in=tenants)).filter(pk=run).first()
    if row is None:
        raise NotFound("There is no such report.")
    return row

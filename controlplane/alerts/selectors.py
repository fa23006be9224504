"""Alerts, rules and silences as operators and tenants see them; the tenant first."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, QuerySet, Subquery

from controlplane.alerts.evaluation import TICK_S
from controlplane.alerts.judging import FIRING
from controlplane.alerts.models import Alert, AlertRule, EvaluationClock, Severity, Silence

LATE_AFTER_S = 4 * TICK_S
"""Then nobody knows what would fire: the evaluation stands still."""


@dataclass(frozen=True, slots=True)
class Bell:
    """What the top bar counts: alerts that fire, are not silenced and nobody has in hand."""

    critical: int
    warning: int
    info: int
    evaluated_at: datetime | None
    is_late: bool


def bell(*, now: datetime, tenants: Collection[str] | None = None) -> Bell:
    """`tenants` None = all, those of no tenant too. One query."""
    rows = alerts_of(tenants).filter(state=FIRING, acknowledged_at=None)
    counts = {str(severity): _count(rows.filter(severity=severity)) for severity in Severity.values}
    clock = EvaluationClock.objects.filter(id=EvaluationClock.ONLY_ID).annotate(**counts)
    found = clock.values("at", *counts).first() or {"at": None}
    at = found["at"]
    return Bell(
        **{severity: found.get(severity) or 0 for severity in counts},
        evaluated_at=at,
        is_late=at is None or (now - at).total_seconds() > LATE_AFTER_S,
    )


def _count(rows: QuerySet[Alert]) -> Subquery:
    return Subquery(rows.order_by().values("state").annotate(count=Count("pk")).values("count"))


def alerts_of(tenants: Collection[str] | None) -> QuerySet[Alert]:
    rows = Alert.objects.select_related("rule").order_by("-id")
    return rows if tenants is None else rows.filter(tenant__in=tenants)


def rules_of(tenants: Collection[str] | None) -> QuerySet[AlertRule]:
    """With their last status. Of tenants: the rules about those alone."""
    rows = AlertRule.objects.select_related("status")
    return rows if tenants is None else rows.filter(tenant__in=tenants)


def silences_of(tenants: Collection[str] | None) -> QuerySet[Silence]:
    rows = Silence.objects.all()
    return rows if tenants is None else rows.filter(tenant__in=tenants)


def lasting(rows: QuerySet[Silence], now: datetime) -> QuerySet[Silence]:
    return rows.filter(ends_at__gt=now, ended_at=None)

"""What has happened since it was last asked, read from the rows that tell of it: nothing has to be sent at the moment
of a change, so that no change can be made without its event.

Rows get their ids before they commit, so a little before the last position is read again; what is found twice has the
same key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any

from django.db.models import Max, Model, Q, QuerySet

from controlplane.alerts.judging import RESOLVED
from controlplane.alerts.models import Alert, AlertTransition
from controlplane.audit.models import AuditEntry
from controlplane.fleet.models import Finding
from controlplane.isolation.models import IsolationViolation
from controlplane.revocations.models import Revocation
from controlplane.webhooks.models import EventCursor

PATTERNS = (
    "*",
    "alert.*",
    "finding.opened",
    "finding.resolved",
    "violation",
    "revocation",
    "rollout.*",
    "worker.*",
    "change.*",
    "audit.verify_failed",
)
"""What a subscription may name."""
AUDITED = ("rollout.", "worker.", "change.")
"""Audit actions that are events themselves."""
AUDIT_BROKEN = "audit_broken"
"""Kind of the finding that the audit log does not verify."""
OVERLAP_ROWS = 200
OVERLAP = timedelta(minutes=10)
ROWS_MAX = 1000
"""Of each source at one look: after an outage the next looks bring the rest."""


@dataclass(frozen=True, slots=True)
class Event:
    key: str
    event: str
    at: str
    """ISO 8601, UTC."""
    subject: str
    severity: str
    """info, warning or critical."""
    summary: str
    tenant: str = ""
    starts_at: str = ""
    """Of something that lasts: when it began."""
    is_over: bool = False
    details: dict[str, Any] = field(default_factory=dict)
    """JSON, of the event's own shape."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def matches(event: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(event, pattern) for pattern in patterns)


def read_new(now: datetime) -> list[Event]:
    """Everything since the last call; inside the caller's transaction, one caller at a time."""
    found = [event for source in SOURCES for event in _read(source, now)]
    return [*found, *_read_resolved(now)]


@dataclass(frozen=True, slots=True)
class Source:
    name: str
    rows: Callable[[], QuerySet[Any]]
    event_of: Callable[[Any], Event]
    at: str
    """Field of the moment."""


def _read(source: Source, now: datetime) -> Iterator[Event]:
    rows = source.rows()
    cursor = EventCursor.objects.select_for_update().filter(source=source.name).first()
    if cursor is None:
        last = rows.aggregate(last=Max("pk"))["last"] or 0
        cursor = EventCursor.objects.create(source=source.name, position=last, read_at=now)
    again = Q(pk__gt=cursor.position - OVERLAP_ROWS, **{f"{source.at}__gte": now - OVERLAP})
    found = list(rows.filter(Q(pk__gt=cursor.position) | again).order_by("pk")[: ROWS_MAX + OVERLAP_ROWS])
    cursor.position = max([cursor.position, *(row.pk for row in found)])
    cursor.read_at = now
    cursor.save()
    yield from (source.event_of(row) for row in found)


def _read_resolved(now: datetime) -> list[Event]:
    """Findings end by a field, not by a row: those that ended since the last look."""
    cursor, _ = EventCursor.objects.select_for_update().get_or_create(
        source="findings-resolved", defaults={"read_at": now}
    )
    rows = Finding.objects.filter(resolved_at__gte=cursor.read_at - OVERLAP, resolved_at__lte=now)
    cursor.read_at = now
    cursor.save()
    return [_resolved(row) for row in rows.order_by("resolved_at")[:ROWS_MAX]]


def opened_event(row: Finding) -> Event:
    kind = "audit.verify_failed" if row.kind == AUDIT_BROKEN else "finding.opened"
    return _of_finding(row, f"finding:{row.pk}:opened", kind, row.first_seen)


def _resolved(row: Finding) -> Event:
    assert row.resolved_at is not None
    return _of_finding(row, f"finding:{row.pk}:resolved", "finding.resolved", row.resolved_at)


def _of_finding(row: Finding, key: str, event: str, at: datetime) -> Event:
    return Event(
        key=key, event=event, at=_text(at), subject=row.subject, severity=str(row.severity),
        summary=f"{row.kind} {row.subject}: {row.message}", starts_at=_text(row.first_seen),
        is_over=event == "finding.resolved", details={"kind": row.kind, "finding": row.pk},
    )  # fmt: skip


def violation_event(row: IsolationViolation) -> Event:
    """Without the evidence: it stays with who may see violations."""
    return Event(
        key=f"violation:{row.pk}", event="violation", at=_text(row.at), subject=row.namespace,
        severity=str(row.severity), tenant=row.tenant, starts_at=_text(row.at),
        summary=f"Isolation violation of {row.namespace} on {row.worker}: {row.get_kind_display()}.",
        details={
            "violation": row.pk, "kind": str(row.kind), "worker": row.worker, "model": row.model,
            "cached_tokens": row.cached_tokens, "bound_tokens": row.bound_tokens, "request_id": row.request_id,
        },
    )  # fmt: skip


def alert_event(row: AlertTransition) -> Event:
    over = row.to_state == RESOLVED
    return _of_alert(row.alert, f"alert:{row.pk}", row.at, row.value, is_over=over)


def firing_event(alert: Alert) -> Event:
    return _of_alert(alert, f"alert:{alert.pk}:firing", alert.fired_at or alert.since, alert.value, is_over=False)


def _of_alert(alert: Alert, key: str, at: datetime, value: float | None, *, is_over: bool) -> Event:
    known = "" if value is None else f" ({value:.4g})"
    return Event(
        key=key, event="alert.resolved" if is_over else "alert.firing", at=_text(at), subject=alert.subject,
        severity=str(alert.severity), tenant=alert.tenant, summary=f"{alert.name}: {alert.subject}{known}",
        starts_at=_text(alert.fired_at or alert.since), is_over=is_over,
        details={
            "kind": alert.rule_slug.replace("-", "_"), "rule": alert.rule_slug, "alert": alert.pk,
            "measure": alert.measure, "value": value, "pool": alert.pool,
            "runbook_url": alert.rule.runbook_url if alert.rule else "",
        },
    )  # fmt: skip


def _revocation(row: Revocation) -> Event:
    return Event(
        key=f"revocation:{row.epoch}", event="revocation", at=_text(row.created_at), subject=row.subject,
        severity="warning", tenant=row.tenant, summary=f"{row.get_kind_display()} {row.subject} was revoked.",
        details={"kind": str(row.kind), "epoch": row.epoch, "reason": row.reason, "actor": row.actor},
    )  # fmt: skip


def _audited(row: AuditEntry) -> Event:
    return Event(
        key=f"audit:{row.pk}", event=row.action, at=_text(row.at), subject=row.object_id, severity="info",
        summary=f"{row.action} {row.object_id} by {row.actor}" + (f": {row.reason}" if row.reason else ""),
        details={"actor": row.actor, "reason": row.reason, "audit_id": row.pk, "request_id": row.request_id},
    )  # fmt: skip


def _text(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


def _audited_rows() -> QuerySet[AuditEntry]:
    wanted = Q()
    for prefix in AUDITED:
        wanted |= Q(action__startswith=prefix)
    return AuditEntry.objects.filter(wanted)


def _all(model: type[Model]) -> Callable[[], QuerySet[Any]]:
    return lambda: model._default_manager.all()


SOURCES = (
    Source("findings", _all(Finding), opened_event, "first_seen"),
    Source("violations", _all(IsolationViolation), violation_event, "at"),
    Source("revocations", _all(Revocation), _revocation, "created_at"),
    Source(
        "alerts", lambda: AlertTransition.objects.filter(told=True).select_related("alert__rule"), alert_event, "at"
    ),
    Source("audit", _audited_rows, _audited, "at"),
)

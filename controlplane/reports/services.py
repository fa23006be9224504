"""Schedules: made, changed, removed, and runs asked for by hand. Each is one transaction with one audit entry."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import transaction
from django.utils import timezone

from controlplane.audit.services import record
from controlplane.errors import Conflict, Invalid, NotFound
from controlplane.fleet.models import WorkerPool
from controlplane.reports import cron
from controlplane.reports.models import Format, ReportRun, ReportSchedule, Scope
from controlplane.saving import expect_revision, save_checked
from controlplane.telemetry.windows import floor_to
from controlplane.tenants.models import Tenant
from controlplane.webhooks.models import Subscription

SCHEDULES_MAX = 500
RECIPIENTS_MAX = 50
RUNS_WAITING_MAX = 20
"""Asked for by hand and not yet made: one is made at a time."""
HOUR_S = 3600
FIELDS = (
    "name", "cron", "time_zone", "scope", "subject", "range_days", "formats", "recipients", "gpu_hour_cost", "currency",
    "enabled",
)  # fmt: skip


def create_schedule(*, actor: str, slug: str, request_id: str = "", **values: Any) -> ReportSchedule:
    """`values`: any of FIELDS. Raises Invalid naming the field, or Conflict."""
    with transaction.atomic():
        if ReportSchedule.objects.count() >= SCHEDULES_MAX:
            raise Conflict(f"At most {SCHEDULES_MAX} schedules.")
        row = ReportSchedule(slug=slug, **_known(values))
        _settle(row, now=timezone.now())
        save_checked(row)
        _record(row, actor=actor, verb="create", before=None, request_id=request_id)
    return row


def update_schedule(
    schedule: int, *, actor: str, if_revision: int | None = None, request_id: str = "", **changes: Any
) -> ReportSchedule:
    """Any of FIELDS. What is under way goes on as it began."""
    with transaction.atomic():
        row = locked(schedule, if_revision)
        before = facts(row)
        for name, value in _known(changes).items():
            setattr(row, name, value)
        _settle(row, now=timezone.now())
        row.revision += 1
        save_checked(row)
        _record(row, actor=actor, verb="update", before=before, request_id=request_id)
    return row


def delete_schedule(schedule: int, *, actor: str, if_revision: int | None = None, request_id: str = "") -> None:
    """With its runs, their files and links."""
    with transaction.atomic():
        row = locked(schedule, if_revision)
        before = facts(row)
        row.delete()
        record(
            actor=actor, action="report.delete", object_type="report", object_id=row.slug, before=before, after=None,
            affects_routing=False, request_id=request_id,
        )  # fmt: skip


def run_now(schedule: int, *, actor: str, request_id: str = "") -> ReportRun:
    """A report that ends at this moment. Raises NotFound, or Conflict when too many wait."""
    now = timezone.now()
    with transaction.atomic():
        row = locked(schedule)
        if ReportRun.objects.filter(due_at=None, state=ReportRun.State.QUEUED).count() >= RUNS_WAITING_MAX:
            raise Conflict(f"{RUNS_WAITING_MAX} reports wait already.")
        run = ReportRun.objects.create(**run_values(row, now=now, to=now), asked_by=actor)
        record(
            actor=actor, action="report.run", object_type="report", object_id=row.slug, before=None,
            after={"run": run.pk}, affects_routing=False, request_id=request_id,
        )  # fmt: skip
    return run


def run_values(row: ReportSchedule, *, now: datetime, to: datetime) -> dict[str, Any]:
    """Fields of a run that ends at `to`. It begins on a full hour, the width of the rollups that it reads."""
    return {
        "schedule": row,
        "tenant": row.tenant,
        "settings": {name: getattr(row, name) for name in FIELDS if name != "enabled"} | {"slug": row.slug},
        "from_at": floor_to(to - timedelta(days=row.range_days), HOUR_S),
        "to_at": to,
        "created_at": now,
        "next_attempt_at": now,
    }


def locked(schedule: int, if_revision: int | None = None) -> ReportSchedule:
    row = ReportSchedule.objects.select_for_update().filter(pk=schedule).first()
    if row is None:
        raise NotFound("There is no such schedule.")
    expect_revision(row, if_revision)
    return row


def facts(row: ReportSchedule) -> dict[str, object]:
    """For the audit log. Addresses of readers are personal: their number stands for them."""
    shown: dict[str, object] = {name: getattr(row, name) for name in FIELDS if name != "recipients"}
    return shown | {"recipients": len(row.recipients), "revision": row.revision}


def _known(values: dict[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(values) - set(FIELDS))
    if unknown:
        raise Invalid.field(unknown[0], "There is no such field.")
    return values


def _settle(row: ReportSchedule, *, now: datetime) -> None:
    """Checks what the columns cannot, brings it into normal form, and finds the next due time."""
    row.name = row.name or row.slug
    _check_subject(row)
    row.formats = _checked_formats(row.formats)
    row.recipients = _checked_recipients(row.recipients)
    row.currency = row.currency.upper()
    if not (row.currency.isalpha() and len(row.currency) == 3):
        raise Invalid.field("currency", "Use three letters, such as EUR or USD.")
    row.cron = " ".join(row.cron.split())
    try:
        cron.zone_named(row.time_zone)
    except cron.BadCron as error:
        raise Invalid.field("time_zone", str(error)) from None
    try:
        cron.check(row.cron, row.time_zone)
    except cron.BadCron as error:
        raise Invalid.field("cron", str(error)) from None
    row.next_due_at = cron.next_due(row.cron, row.time_zone, after=now) if row.enabled else None


def _check_subject(row: ReportSchedule) -> None:
    if row.scope == Scope.FLEET:
        row.subject = ""
    elif row.scope == Scope.POOL and not WorkerPool.objects.filter(slug=row.subject).exists():
        raise Invalid.field("subject", "There is no such pool.")
    elif row.scope == Scope.TENANT and not Tenant.objects.filter(slug=row.subject).exists():
        raise Invalid.field("subject", "There is no such tenant.")


def _checked_formats(formats: Sequence[str]) -> list[str]:
    if not formats or any(name not in Format.values for name in formats):
        raise Invalid.field("formats", f"Name at least one of: {', '.join(Format.values)}.")
    return [str(name) for name in Format.values if name in formats]


def _checked_recipients(recipients: Sequence[Any]) -> list[dict[str, str]]:
    if len(recipients) > RECIPIENTS_MAX:
        raise Invalid.field("recipients", f"At most {RECIPIENTS_MAX} recipients.")
    return [dict(item) for item in {tuple(_checked_recipient(one).items()): None for one in recipients}]


def _checked_recipient(recipient: Any) -> dict[str, str]:
    kind, to = (recipient.get("kind"), recipient.get("to")) if isinstance(recipient, dict) else (None, None)
    if kind == "email" and isinstance(to, str):
        try:
            validate_email(to)
        except ValidationError:
            raise Invalid.field("recipients", f"{to[:80]!r} is no e-mail address.") from None
        return {"kind": "email", "to": to}
    if kind == "webhook" and isinstance(to, str) and Subscription.objects.filter(slug=to).exists():
        return {"kind": "webhook", "to": to}
    raise Invalid.field("recipients", 'Each is {"kind": "email", "to": "<address>"} or a webhook that exists.')


def _record(row: ReportSchedule, *, actor: str, verb: str, before: dict[str, object] | None, request_id: str) -> None:
    record(
        actor=actor, action=f"report.{verb}", object_type="report", object_id=row.slug, before=before,
        after=facts(row), affects_routing=False, request_id=request_id,
    )  # fmt: skip

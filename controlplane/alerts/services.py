"""Rules, silences and acknowledgements: each change is one transaction with one audit entry."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from controlplane.alerts.evaluation import OFF, end
from controlplane.alerts.measures import MEASURES
from controlplane.alerts.models import Alert, AlertRule, Silence
from controlplane.audit.services import record
from controlplane.errors import Conflict, FieldError, Invalid, NotFound
from controlplane.fleet.models import WorkerPool
from controlplane.saving import expect_revision, save_checked
from controlplane.tenants.models import Tenant

RULES_MAX = 200
"""Each is read and judged every tick."""
SILENCE_MAX = timedelta(days=30)
SILENCES_ACTIVE_MAX = 500
WORDS_MAX = 500
FIELDS = (
    "name", "measure", "comparison", "threshold", "clear_at", "window_s", "for_s", "on_unknown", "severity", "tenant",
    "pool", "runbook", "runbook_url", "enabled",
)  # fmt: skip
"""What a rule says. What one does not name has its default."""
CONDITION = ("measure", "comparison", "threshold", "clear_at", "window_s", "for_s", "on_unknown", "tenant", "pool")


def checked_rule(slug: str, values: Mapping[str, Any]) -> AlertRule:
    """An unsaved rule, for the preview as well. Raises Invalid naming each field."""
    row = AlertRule(slug=slug, **{name: values[name] for name in FIELDS if name in values})
    _check(row)
    return row


def create_rule(*, actor: str, slug: str, request_id: str = "", **values: Any) -> AlertRule:
    """Raises Invalid, or Conflict for a taken name and for too many."""
    row = checked_rule(slug, values)
    with transaction.atomic():
        if AlertRule.objects.count() >= RULES_MAX:
            raise Conflict(f"At most {RULES_MAX} alert rules.")
        save_checked(row)
        _record(row, actor=actor, verb="create", before=None, request_id=request_id)
    return row


def update_rule(
    slug: str, *, actor: str, if_revision: int | None = None, request_id: str = "", **values: Any
) -> AlertRule:
    """A change of its condition ends what it has raised: that spoke of another condition."""
    with transaction.atomic():
        row = _locked(slug, if_revision)
        before = facts(row)
        for name in FIELDS:
            if name in values:
                setattr(row, name, values[name])
        _check(row)
        row.revision += 1
        save_checked(row)
        after = facts(row)
        if not row.enabled or any(before[name] != after[name] for name in CONDITION):
            _end_all(row)
        _record(row, actor=actor, verb="update", before=before, request_id=request_id)
    return row


def delete_rule(slug: str, *, actor: str, if_revision: int | None = None, request_id: str = "") -> None:
    """Its past alerts stay in the history."""
    with transaction.atomic():
        row = _locked(slug, if_revision)
        before = facts(row)
        _end_all(row)
        row.delete()
        record(
            actor=actor, action="alert_rule.delete", object_type="alert_rule", object_id=slug, before=before,
            after=None, affects_routing=False, request_id=request_id,
        )  # fmt: skip


def create_silence(
    *,
    actor: str,
    ends_at: datetime,
    reason: str,
    rule_slug: str = "",
    subject: str = "",
    tenant: str = "",
    pool: str = "",
    severity: str = "",
    now: datetime | None = None,
    request_id: str = "",
) -> Silence:
    """From this moment. Raises Invalid, or Conflict for too many."""
    now = now or timezone.now()
    row = Silence(
        rule_slug=rule_slug, subject=subject.strip(), tenant=tenant, pool=pool, severity=severity,
        reason=_words("reason", reason), created_by=actor[:200], starts_at=now, ends_at=ends_at,
    )  # fmt: skip
    if not now < ends_at <= now + SILENCE_MAX:
        raise Invalid.field("ends_at", f"A silence ends in the future, within {SILENCE_MAX.days} days.")
    if not any((rule_slug, row.subject.strip("*"), tenant, pool, severity)):
        raise Invalid.field("rule", "Name at least one of rule, subject, tenant, pool, severity: not everything.")
    with transaction.atomic():
        if rule_slug and not AlertRule.objects.filter(slug=rule_slug).exists():
            raise Invalid.field("rule", f"There is no alert rule {rule_slug!r}.")
        if Silence.objects.filter(ends_at__gt=now, ended_at=None).count() >= SILENCES_ACTIVE_MAX:
            raise Conflict(f"At most {SILENCES_ACTIVE_MAX} silences at a time: end some.")
        save_checked(row)
        record(
            actor=actor, action="silence.create", object_type="silence", object_id=str(row.pk), before=None,
            after=silence_facts(row), affects_routing=False, reason=row.reason, request_id=request_id,
        )  # fmt: skip
    return row


def end_silence(silence_id: int, *, actor: str, request_id: str = "") -> Silence:
    """Raises NotFound, or Conflict when it is over already."""
    now = timezone.now()
    with transaction.atomic():
        row = Silence.objects.select_for_update().filter(pk=silence_id).first()
        if row is None:
            raise NotFound("There is no such silence.")
        if row.ended_at is not None or row.ends_at <= now:
            raise Conflict("This silence is over already.")
        before = silence_facts(row)
        row.ended_at, row.ended_by = now, actor[:200]
        save_checked(row)
        record(
            actor=actor, action="silence.end", object_type="silence", object_id=str(row.pk), before=before,
            after=silence_facts(row), affects_routing=False, request_id=request_id,
        )  # fmt: skip
    return row


def acknowledge_alert(alert_id: int, *, actor: str, reason: str, request_id: str = "") -> Alert:
    """Somebody has it in hand: it goes on, and the bell counts it no more. Raises NotFound, Invalid, Conflict."""
    text = _words("reason", reason)
    with transaction.atomic():
        row = Alert.objects.select_for_update().filter(pk=alert_id).first()
        if row is None:
            raise NotFound("There is no such alert.")
        if row.resolved_at is not None:
            raise Conflict("It is over already.")
        if row.acknowledged_at is not None:
            raise Conflict(f"It was acknowledged by {row.acknowledged_by} already.")
        row.acknowledged_at, row.acknowledged_by, row.acknowledgement = timezone.now(), actor[:200], text
        save_checked(row)
        record(
            actor=actor, action="alert.acknowledge", object_type="alert", object_id=str(row.pk),
            before={"acknowledged": False},
            after={"acknowledged": True, "rule": row.rule_slug, "subject": row.subject},
            affects_routing=False, reason=text, request_id=request_id,
        )  # fmt: skip
    return row


def facts(row: AlertRule) -> dict[str, object]:
    return {"rule": row.slug, **{name: getattr(row, name) for name in FIELDS}, "revision": row.revision}


def silence_facts(row: Silence) -> dict[str, object]:
    matchers = {name: getattr(row, name) for name in ("rule_slug", "subject", "tenant", "pool", "severity")}
    return {
        **{name: value for name, value in matchers.items() if value},
        "starts_at": row.starts_at.isoformat(),
        "ends_at": row.ends_at.isoformat(),
        "ended_at": row.ended_at.isoformat() if row.ended_at else None,
    }


def _check(row: AlertRule) -> None:
    """Rules that span fields; those of single fields are the model's."""
    errors = []
    measure = MEASURES.get(row.measure)
    if measure is None:
        raise Invalid.field("measure", f"Choose one of: {', '.join(MEASURES)}.")
    numbers = [("threshold", row.threshold)] + ([("clear_at", row.clear_at)] if row.clear_at is not None else [])
    for name, value in numbers:
        if not isinstance(value, int | float) or not math.isfinite(value) or abs(value) > 1e12:
            errors.append(FieldError(field=name, message="This must be a finite number."))
        elif measure.unit == "share" and not 0 <= value <= 1:
            errors.append(FieldError(field=name, message="A share lies between 0 and 1."))
    if not errors and row.clear_at is not None:
        inside = row.clear_at <= row.threshold if row.comparison == "above" else row.clear_at >= row.threshold
        if not inside:
            side = "below" if row.comparison == "above" else "above"
            errors.append(FieldError(field="clear_at", message=f"It must lie at or {side} the threshold."))
    if row.tenant and not measure.by_tenant:
        errors.append(FieldError(field="tenant", message=f"{measure.label} cannot be told of one tenant."))
    if row.pool and not measure.by_pool:
        errors.append(FieldError(field="pool", message=f"{measure.label} cannot be told of one pool."))
    if row.tenant and not Tenant.objects.filter(slug=row.tenant).exists():
        errors.append(FieldError(field="tenant", message=f"There is no tenant {row.tenant!r}."))
    if row.pool and not WorkerPool.objects.filter(slug=row.pool).exists():
        errors.append(FieldError(field="pool", message=f"There is no pool {row.pool!r}."))
    if row.runbook_url and not row.runbook_url.startswith(("https://", "http://")):
        errors.append(FieldError(field="runbook_url", message="An address that begins with https:// or http://."))
    if errors:
        raise Invalid(errors[0]["message"], errors=errors)


def _words(field: str, text: str) -> str:
    words = text.strip()
    if not words or len(words) > WORDS_MAX:
        raise Invalid.field(field, f"Say why, in 1–{WORDS_MAX} characters.")
    return words


def _end_all(row: AlertRule) -> None:
    for alert in Alert.objects.select_for_update().filter(rule=row, resolved_at=None):
        end(alert, timezone.now(), OFF)


def _locked(slug: str, if_revision: int | None) -> AlertRule:
    row = AlertRule.objects.select_for_update().filter(slug=slug).first()
    if row is None:
        raise NotFound(f"There is no alert rule {slug!r}.")
    expect_revision(row, if_revision)
    return row


def _record(row: AlertRule, *, actor: str, verb: str, before: dict[str, object] | None, request_id: str) -> None:
    record(
        actor=actor, action=f"alert_rule.{verb}", object_type="alert_rule", object_id=row.slug, before=before,
        after=facts(row), affects_routing=False, request_id=request_id,
    )  # fmt: skip

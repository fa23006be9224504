"""One tick: every rule is read and judged, and what changed is written, exactly once for each moment.

The clock moves on and the alerts change in one transaction: a second beat, or a tick that is delivered twice, finds its
moment taken; one that dies leaves it free.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime

from django.db import transaction
from django.utils import timezone

from controlplane.alerts.judging import (
    FIRING,
    LASTING,
    OK,
    PENDING,
    RESOLVED,
    SILENCED,
    UNKNOWN,
    Reading,
    Standing,
    fits,
    gravest,
    next_standing,
    worst,
)
from controlplane.alerts.models import Alert, AlertRule, AlertTransition, EvaluationClock, RuleStatus, Silence
from controlplane.alerts.readings import Reader
from controlplane.telemetry.rollups import lock_until_commit

TICK_S = 15
_LOCK_ID = 0x54494445_00000004
"""Advisory lock of PostgreSQL, after those of the rollups: one evaluation at a time."""
IDLE = "idle"
"""State of a rule that finds nothing to look at: neither well nor unknown."""
GONE = "There is no such subject any more."
OFF = "The rule was switched off, changed or removed."
SUBJECTS_MAX = 1000
"""Of one rule: alerts beyond it are not opened."""


def evaluate(now: datetime | None = None) -> int | None:
    """How many alerts changed; None when this moment was evaluated already."""
    now = now or timezone.now()
    slot = int(now.timestamp()) // TICK_S
    began = time.monotonic()
    if EvaluationClock.objects.filter(slot__gte=slot).exists():
        return None
    # Figures are read before anything is locked: ingestion goes on meanwhile.
    reader = Reader(now)
    read = [(rule, reader.readings(rule)[:SUBJECTS_MAX]) for rule in AlertRule.objects.filter(enabled=True)]
    with transaction.atomic():
        lock_until_commit(_LOCK_ID)
        clock, _ = EvaluationClock.objects.get_or_create(id=EvaluationClock.ONLY_ID)
        if slot <= clock.slot:
            return None
        changed = _judge_all(read, now)
        clock.slot, clock.at, clock.seconds = slot, now, time.monotonic() - began
        clock.save()
    return changed


def _judge_all(read: Sequence[tuple[AlertRule, list[Reading]]], now: datetime) -> int:
    """A rule that was changed since it was read waits for the next tick."""
    silences = active_silences(now)
    current = dict(AlertRule.objects.filter(enabled=True).values_list("pk", "revision"))
    standing: dict[int, dict[str, Alert]] = {}
    for alert in Alert.objects.filter(resolved_at=None):
        standing.setdefault(alert.rule_id or 0, {})[alert.subject] = alert
    changed = 0
    for rule, readings in read:
        own = standing.pop(rule.pk, {})
        if current.get(rule.pk) == rule.revision:
            changed += _judge(rule, readings, own, silences, now)
    RuleStatus.objects.filter(rule__enabled=False).delete()
    return changed


def active_silences(now: datetime) -> list[Silence]:
    return list(Silence.objects.filter(starts_at__lte=now, ends_at__gt=now, ended_at=None))


def _judge(
    rule: AlertRule,
    readings: Sequence[Reading],
    standing: dict[str, Alert],
    silences: Sequence[Silence],
    now: datetime,
) -> int:
    changed = 0
    states = []
    for reading in readings:
        alert = standing.pop(reading.subject, None)
        before = Standing(alert.state, alert.since) if alert else Standing(OK, now)
        after = next_standing(rule, before, reading, now)
        silenced = any(fits(each, rule_slug=rule.slug, severity=rule.severity, reading=reading) for each in silences)
        after = _with_silence(after, silenced=silenced)
        changed += _write(rule, alert, after, reading, now)
        states.append(OK if after.state == RESOLVED else after.state)
    for alert in standing.values():
        end(alert, now, GONE)
    _note_status(rule, readings, states, now)
    return changed + len(standing)


def _with_silence(after: Standing, *, silenced: bool) -> Standing:
    if after.state in LASTING:
        return Standing(SILENCED if silenced else FIRING, after.since)
    return after


def _write(rule: AlertRule, alert: Alert | None, after: Standing, reading: Reading, now: datetime) -> bool:
    """Whether its state changed."""
    if after.state == OK:
        if alert is not None:
            alert.delete()  # it never fired: a pending or an unknown one leaves no trace
        return alert is not None
    if alert is None:
        alert = _opened(rule, reading, after)
    changed = alert.pk is None or alert.state != after.state
    alert.state, alert.since = after.state, after.since
    alert.value = reading.value if reading.value is not None else alert.value
    alert.reason = reading.reason[:300]
    is_lost = reading.value is None and after.state in LASTING
    alert.unknown_since = (alert.unknown_since or now) if is_lost else None
    if after.state in LASTING:
        alert.fired_at = alert.fired_at or now
    if after.state == RESOLVED:
        alert.resolved_at = now
    _save(alert, changed=changed, at=now)
    return changed


def _opened(rule: AlertRule, reading: Reading, after: Standing) -> Alert:
    return Alert(
        rule=rule, rule_slug=rule.slug, name=rule.name, measure=rule.measure, severity=rule.severity,
        subject=reading.subject, tenant=reading.tenant or rule.tenant, pool=reading.pool or rule.pool,
        state=after.state, since=after.since,
    )  # fmt: skip


def _save(alert: Alert, *, changed: bool, at: datetime) -> None:
    """With a line of its history where its state changed. A silenced one is told once its silence is over."""
    told = changed and (alert.state == FIRING or (alert.state == RESOLVED and alert.told))
    alert.told = alert.told or told
    alert.save()
    if changed and alert.state not in (PENDING, UNKNOWN):
        AlertTransition.objects.create(
            alert=alert, at=at, to_state=alert.state, value=alert.value, reason=alert.reason, told=told
        )


def end(alert: Alert, now: datetime, reason: str) -> None:
    """Without its value having become good; one that had not fired is dropped."""
    if alert.state not in LASTING:
        alert.delete()
        return
    alert.state, alert.resolved_at, alert.reason, alert.unknown_since = RESOLVED, now, reason, None
    _save(alert, changed=True, at=now)


def _note_status(rule: AlertRule, readings: Sequence[Reading], states: Sequence[str], now: datetime) -> None:
    unknown = [reading for reading in readings if reading.value is None]
    RuleStatus.objects.update_or_create(
        rule=rule,
        defaults={
            "at": now,
            "state": gravest(states) if readings else IDLE,
            "value": worst(rule, (reading.value for reading in readings if reading.value is not None)),
            "subjects": len(readings),
            "unknown": len(unknown),
            "reason": unknown[0].reason[:300] if unknown else "" if readings else "There is nothing to look at.",
        },
    )

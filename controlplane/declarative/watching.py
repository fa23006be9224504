"""Alert rules, webhooks and report schedules as documents: who is told of what, and when.

What has a history, a webhook's deliveries and a schedule's reports, is switched off rather than deleted.
"""

from __future__ import annotations

from typing import Any

from controlplane.alerts.models import AlertRule
from controlplane.alerts.services import create_rule, delete_rule, update_rule
from controlplane.declarative.documents import Spec
from controlplane.declarative.kind import FLAG, LIST, NUMBER, OR_NONE, TEXT, WHOLE, Change, Field, Kind
from controlplane.errors import Conflict
from controlplane.reports.models import ReportSchedule, all_formats
from controlplane.reports.services import create_schedule, update_schedule
from controlplane.webhooks.models import Subscription
from controlplane.webhooks.services import create_subscription, unsealed, update_subscription

RULE_FIELDS = {
    "name": Field(TEXT, is_required=True),
    "measure": Field(TEXT, is_required=True),
    "comparison": Field(TEXT, is_required=True),
    "threshold": Field(NUMBER, is_required=True),
    "clear_at": Field(NUMBER + OR_NONE),
    "window_s": Field(WHOLE, 300),
    "for_s": Field(WHOLE, 0),
    "on_unknown": Field(TEXT, "show"),
    "severity": Field(TEXT, "warning"),
    "tenant": Field(TEXT, ""),
    "pool": Field(TEXT, ""),
    "runbook": Field(TEXT, ""),
    "runbook_url": Field(TEXT, ""),
    "enabled": Field(FLAG, True),
}
WEBHOOK_FIELDS = {
    "origin": Field(TEXT, is_required=True),
    "format": Field(TEXT, "tidemark"),
    "events": Field(LIST, ["*"], is_set=True),
    "enabled": Field(FLAG, True),
}
SCHEDULE_FIELDS = {
    "name": Field(TEXT, is_required=True),
    "cron": Field(TEXT, is_required=True),
    "time_zone": Field(TEXT, "UTC"),
    "scope": Field(TEXT, "fleet"),
    "subject": Field(TEXT, ""),
    "range_days": Field(WHOLE, 30),
    "formats": Field(LIST, sorted(all_formats()), is_set=True),
    "recipients": Field(LIST, []),
    "gpu_hour_cost": Field(NUMBER + OR_NONE),
    "currency": Field(TEXT, "EUR"),
    "enabled": Field(FLAG, True),
}


def _read_rules() -> dict[str, Spec]:
    return {row.slug: _plain(row, RULE_FIELDS) for row in AlertRule.objects.order_by()}


def _plain(row: Any, fields: dict[str, Field]) -> Spec:
    """Choices as plain texts, sets in their one order."""
    values = {name: getattr(row, name) for name in fields}
    return {
        name: str(value) if isinstance(value, str) else fields[name].normal(value) for name, value in values.items()
    }


def _create_rule(name: str, wanted: Spec, change: Change) -> None:
    create_rule(actor=change.actor, slug=name, **wanted)


def _update_rule(name: str, wanted: Spec, current: Spec, change: Change) -> None:
    update_rule(name, actor=change.actor, **wanted)


def _remove_rule(name: str, change: Change) -> None:
    delete_rule(name, actor=change.actor)


def _read_webhooks() -> dict[str, Spec]:
    return {row.slug: _plain(row, WEBHOOK_FIELDS) for row in Subscription.objects.order_by()}


def _create_webhook(name: str, wanted: Spec, change: Change) -> None:
    state = change.sealed_for("Webhook", name)
    if state is None:
        raise Conflict(
            "its address and its secret are in no plain file: make it by hand, or apply an export with secrets"
        )
    rest = {key: value for key, value in wanted.items() if key != "origin"}
    made = create_subscription(actor=change.actor, slug=name, url=state["url"], secret=state["secret"], **rest)
    if made.subscription.origin != wanted["origin"]:
        raise Conflict("its sealed address is of another origin")


def _update_webhook(name: str, wanted: Spec, current: Spec, change: Change) -> None:
    if wanted["origin"] != current["origin"]:
        raise Conflict("its address is changed by hand: a plain file does not hold it")
    update_subscription(name, actor=change.actor, **{key: wanted[key] for key in ("format", "events", "enabled")})


def _remove_webhook(name: str, change: Change) -> None:
    update_subscription(name, actor=change.actor, enabled=False)


def _seal_webhooks() -> dict[str, Spec]:
    """But for those that another fleet key sealed: nobody can read them."""
    found: dict[str, Spec] = {}
    for row in Subscription.objects.order_by():
        try:
            content = unsealed(row)
        except Conflict:
            continue
        found[row.slug] = {"url": content.url, "secret": content.secret}
    return found


def _read_schedules() -> dict[str, Spec]:
    return {row.slug: _plain(row, SCHEDULE_FIELDS) for row in ReportSchedule.objects.order_by()}


def _create_schedule(name: str, wanted: Spec, change: Change) -> None:
    create_schedule(actor=change.actor, slug=name, **wanted)


def _update_schedule(name: str, wanted: Spec, current: Spec, change: Change) -> None:
    update_schedule(_schedule(name).pk, actor=change.actor, **wanted)


def _remove_schedule(name: str, change: Change) -> None:
    update_schedule(_schedule(name).pk, actor=change.actor, enabled=False)


def _schedule(name: str) -> ReportSchedule:
    return ReportSchedule.objects.get(slug=name)


def _is_off(spec: Spec) -> bool:
    return not spec["enabled"]


ALERT_RULE = Kind("AlertRule", "alert_rule", RULE_FIELDS, _read_rules, _create_rule, _update_rule, _remove_rule)
WEBHOOK = Kind(
    "Webhook", "webhook", WEBHOOK_FIELDS, _read_webhooks, _create_webhook, _update_webhook, _remove_webhook,
    is_gone=_is_off, seal=_seal_webhooks, only_with_secrets=True,
)  # fmt: skip
SCHEDULE = Kind(
    "ReportSchedule", "report", SCHEDULE_FIELDS, _read_schedules, _create_schedule, _update_schedule,
    _remove_schedule, is_gone=_is_off,
)  # fmt: skip

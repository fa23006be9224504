"""Alerts and rules in words: values with their unit, conditions as sentences, where an alert is looked at."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from controlplane.alerts.judging import LASTING, PENDING, UNKNOWN
from controlplane.alerts.measures import MEASURES, Of
from controlplane.alerts.models import Alert, AlertRule
from dashboard import numbers

TONES = {"critical": "crit", "warning": "warn", "info": ""}
STATE_ICONS = {
    "firing": "bell",
    "silenced": "player-pause",
    "pending": "clock",
    "unknown": "help-circle",
    "resolved": "circle-check",
    "ok": "circle-check",
    "idle": "minus",
}


def measured(measure: str, value: float | None) -> str:
    """A value of the measure with its unit: `61.3 %`, `4.2 s`, `3`."""
    unit = MEASURES[measure].unit if measure in MEASURES else ""
    if unit in ("share", "ratio"):
        return numbers.percent(value)
    if unit == "ms":
        return numbers.milliseconds(value)
    if unit == "s":
        return numbers.seconds(value)
    return numbers.count(value)


def condition(rule: AlertRule) -> str:
    """`below 20.0 % for 15 min, over 15 min; ends at 25.0 %`."""
    measure = MEASURES[rule.measure]
    words = f"{rule.comparison} {measured(rule.measure, rule.threshold)}"
    if rule.for_s:
        words += f" for {numbers.seconds(rule.for_s)}"
    if measure.has_window:
        words += f", over {numbers.seconds(rule.window_s)}"
    if rule.clear_at is not None:
        words += f"; ends at {measured(rule.measure, rule.clear_at)}"
    return words


def scope_words(rule: AlertRule) -> str:
    parts = [f"tenant {rule.tenant}"] if rule.tenant else []
    parts += [f"pool {rule.pool}"] if rule.pool else []
    if parts:
        return ", ".join(parts)
    return {
        Of.SCOPE: "the fleet",
        Of.WORKER: "each worker",
        Of.TENANT: "each tenant",
        Of.ROUTER: "each router",
    }[MEASURES[rule.measure].of]


def place_of(alert: Alert) -> tuple[str, str]:
    """(path, words of the link) of where the subject's figures are."""
    target = quote(alert.subject, safe="/")
    if alert.measure == "violations":
        return "/isolation/?open=1", "Review violations"
    if alert.measure == "critical_findings":
        return "/isolation/", "See findings"
    if alert.measure == "work_given_up":
        return "/webhooks/", "See given-up work"
    of = MEASURES[alert.measure].of
    if of is Of.WORKER:
        return f"/workers/{target}/", f"Open {alert.subject}"
    if of is Of.ROUTER:
        return "/policies/", "See roll-out"
    if alert.tenant:
        return f"/?tenant={quote(alert.tenant)}", f"Figures of {alert.tenant}"
    return f"/?pool={quote(alert.pool)}" if alert.pool else "/", "See figures"


@dataclass(frozen=True, slots=True)
class Line:
    """An alert as a row of a table."""

    alert: Alert

    @property
    def value(self) -> str:
        return measured(self.alert.measure, self.alert.value)

    @property
    def limit(self) -> str:
        rule = self.alert.rule
        return f"{rule.comparison} {measured(rule.measure, rule.threshold)}" if rule else ""

    @property
    def icon(self) -> str:
        return STATE_ICONS[self.alert.state]

    @property
    def tone(self) -> str:
        """Only what fires is judged."""
        if self.alert.state in (PENDING, UNKNOWN):
            return "stale"
        return TONES[self.alert.severity] if self.alert.state in LASTING else ""

    @property
    def is_open(self) -> bool:
        return self.alert.resolved_at is None


@dataclass(frozen=True, slots=True)
class RuleLine:
    rule: AlertRule

    @property
    def measure(self) -> str:
        return MEASURES[self.rule.measure].label

    @property
    def condition(self) -> str:
        return condition(self.rule)

    @property
    def scope(self) -> str:
        return scope_words(self.rule)

    @property
    def state(self) -> str:
        if not self.rule.enabled:
            return "off"
        status = getattr(self.rule, "status", None)
        return status.state if status else "not evaluated yet"

    @property
    def icon(self) -> str:
        return STATE_ICONS.get(self.state, "minus")

    @property
    def tone(self) -> str:
        if self.state == "ok":
            return "ok"
        return TONES[self.rule.severity] if self.state in LASTING else "stale"

    @property
    def value(self) -> str:
        status = getattr(self.rule, "status", None)
        return measured(self.rule.measure, status.value if status else None)

    @property
    def reason(self) -> str:
        """Why it is unknown, of how many subjects."""
        status = getattr(self.rule, "status", None)
        if status is None or not status.reason:
            return ""
        return f"{status.unknown} of {status.subjects} unknown: {status.reason}" if status.unknown else status.reason

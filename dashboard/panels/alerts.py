"""Panels of alerts: the bell of the top bar, what goes on, and every rule with its last word."""

from __future__ import annotations

from controlplane.alerts.judging import GRAVITY
from controlplane.alerts.models import Alert
from controlplane.alerts.selectors import alerts_of, bell, rules_of
from dashboard.alerts import Line, RuleLine
from dashboard.data import PageData
from dashboard.panels.base import Context, Panel

OPEN_SHOWN = 200
RULES_SHOWN = 200
STATES = tuple(state for state in Alert.State if state != Alert.State.RESOLVED)
_SEVERITIES = ("critical", "warning", "info")


def _tenants(data: PageData) -> list[str] | None:
    return [data.state.tenant] if data.state.tenant else None


def _bell(data: PageData) -> Context:
    return {"bell": bell(now=data.now)}


def _open(data: PageData) -> Context:
    """Gravest first; the list's search and the scope's pool and worker narrow it."""
    rows = alerts_of(_tenants(data)).filter(resolved_at=None)
    if data.state.only in STATES:
        rows = rows.filter(state=data.state.only)
    if data.state.pool:
        rows = rows.filter(pool=data.state.pool)
    sought = data.state.q.lower()
    found = [
        alert for alert in rows[:OPEN_SHOWN] if sought in f"{alert.name} {alert.rule_slug} {alert.subject}".lower()
    ]
    found.sort(key=lambda alert: (GRAVITY.index(alert.state), _SEVERITIES.index(alert.severity), -alert.pk))
    return {"lines": [Line(alert) for alert in found], "shown_max": OPEN_SHOWN, "narrowed": data.state.only or sought}


def _rules(data: PageData) -> Context:
    return {"lines": [RuleLine(rule) for rule in rules_of(_tenants(data))[:RULES_SHOWN]]}


PANELS = (
    Panel("alerts", "Alerts", "", _bell),
    Panel(
        "alerts_open",
        "What goes on",
        "Firing: the condition holds and receivers were told. Pending: it holds, not long enough yet. Unknown: the "
        "figures are missing, so nobody can say that it is well.",
        _open,
        of_tenants=True,
    ),
    Panel(
        "alert_rules",
        "Rules",
        "Each is evaluated every 15 s. The state is the gravest of all that it looks at, the value the worst.",
        _rules,
        of_tenants=True,
    ),
)

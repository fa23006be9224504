"""What is wrong at this moment, as Alertmanager would tell of it: alerts that fire, open findings, open
violations."""

from __future__ import annotations

from typing import Any

from controlplane.alerts.judging import FIRING
from controlplane.alerts.models import Alert
from controlplane.fleet.models import Finding
from controlplane.isolation.models import IsolationViolation
from controlplane.webhooks.delivering import external_url
from controlplane.webhooks.events import firing_event, opened_event, violation_event
from controlplane.webhooks.formats import alert_of, alerts_document

ALERTS_MAX = 1000
"""Of each kind, the latest; `truncatedAlerts` counts the rest."""


def current_alerts() -> dict[str, Any]:
    """Three queries, and three more where there are more than ALERTS_MAX. Silenced alerts are left out."""
    firing = Alert.objects.filter(state=FIRING).select_related("rule").order_by("-id")
    findings = Finding.objects.filter(resolved_at=None).order_by("-last_seen")
    violations = IsolationViolation.objects.filter(acknowledged_at=None).order_by("-at")
    events = [firing_event(row) for row in firing[:ALERTS_MAX]]
    events += [opened_event(row) for row in findings[:ALERTS_MAX]]
    events += [violation_event(row) for row in violations[:ALERTS_MAX]]
    alerts = [alert_of(event.as_json(), external_url()) for event in events]
    document = alerts_document(alerts, receiver="api", external_url=external_url())
    left_out = (
        sum(max(0, rows.count() - ALERTS_MAX) for rows in (firing, findings, violations))
        if len(events) >= ALERTS_MAX
        else 0
    )
    return document | {"truncatedAlerts": left_out}

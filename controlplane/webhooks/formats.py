"""An event in the words of its receiver. No database.

Alertmanager: the JSON that it posts to webhooks itself, version 4
(https://prometheus.io/docs/alerting/latest/configuration/#webhook_config), so that what understands it understands us.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

Payload = Mapping[str, Any]
"""An `events.Event` as JSON."""
_OPENING = {"finding.resolved": "finding.opened", "alert.resolved": "alert.firing"}
"""What ends is the same alert as what began."""
NEVER = "0001-01-01T00:00:00Z"
"""`endsAt` of an alert that goes on, as Alertmanager writes it."""


def body_of(format: str, payload: Payload, *, receiver: str, external_url: str) -> dict[str, Any]:
    if format == "alertmanager":
        return alerts_document([alert_of(payload, external_url)], receiver=receiver, external_url=external_url)
    if format == "slack":
        return {"text": _slack_text(payload)}
    return {**payload, "source": external_url}


def alerts_document(alerts: Sequence[Mapping[str, Any]], *, receiver: str, external_url: str) -> dict[str, Any]:
    """Firing when any of them is."""
    firing = any(alert["status"] == "firing" for alert in alerts)
    return {
        "version": "4",
        "groupKey": f'{{}}:{{source="tidemark",receiver="{receiver}"}}',
        "truncatedAlerts": 0,
        "status": "firing" if firing else "resolved",
        "receiver": receiver,
        "groupLabels": {"source": "tidemark"},
        "commonLabels": _common([alert["labels"] for alert in alerts]),
        "commonAnnotations": _common([alert["annotations"] for alert in alerts]),
        "externalURL": external_url,
        "alerts": list(alerts),
    }


def alert_of(payload: Payload, external_url: str) -> dict[str, Any]:
    labels = {
        "alertname": _camel(str(payload["details"].get("kind") or payload["event"])),
        "source": "tidemark",
        "event": _OPENING.get(payload["event"], payload["event"]),
        "severity": payload["severity"],
        "subject": payload["subject"],
    }
    if payload["tenant"]:
        labels["tenant"] = payload["tenant"]
    over = bool(payload["is_over"])
    return {
        "status": "resolved" if over else "firing",
        "labels": labels,
        "annotations": _annotations(payload),
        "startsAt": payload["starts_at"] or payload["at"],
        "endsAt": payload["at"] if over else NEVER,
        "generatorURL": external_url,
        "fingerprint": fingerprint(labels),
    }


def _annotations(payload: Payload) -> dict[str, str]:
    runbook = payload["details"].get("runbook_url")
    return {"summary": payload["summary"]} | ({"runbook_url": str(runbook)} if runbook else {})


def fingerprint(labels: Mapping[str, str]) -> str:
    """16 hexadecimal digits: equal labels, one alert."""
    text = "".join(f"{name}\xff{labels[name]}\xff" for name in sorted(labels))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _common(sets: Sequence[Mapping[str, str]]) -> dict[str, str]:
    if not sets:
        return {}
    return {name: value for name, value in sets[0].items() if all(each.get(name) == value for each in sets)}


def _slack_text(payload: Payload) -> str:
    """Slack reads &, < and > as its own: https://docs.slack.dev/messaging/formatting-message-text"""
    sign = "resolved" if payload["is_over"] else payload["severity"]
    text = f"[{sign}] {payload['event']}: {payload['summary']}"
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _camel(text: str) -> str:
    """`kv_event_gap` → `KvEventGap`."""
    return "".join(part[:1].upper() + part[1:] for part in text.replace(".", "_").split("_"))

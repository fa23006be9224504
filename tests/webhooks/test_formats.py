"""What Slack and Alertmanager's receivers are sent, and the alerts of this moment in the latter's form."""

from __future__ import annotations

import json

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from controlplane.fleet.findings import Observation, observe, resolve
from controlplane.isolation.models import IsolationViolation
from controlplane.tenants.models import User
from controlplane.webhooks.delivering import attempt, collect, due
from controlplane.webhooks.services import create_subscription
from tests.webhooks.conftest import ACTOR

pytestmark = pytest.mark.django_db
ALERT_KEYS = {"status", "labels", "annotations", "startsAt", "endsAt", "generatorURL", "fingerprint"}
DOCUMENT_KEYS = {
    "version", "groupKey", "truncatedAlerts", "status", "receiver", "groupLabels", "commonLabels",
    "commonAnnotations", "externalURL", "alerts",
}  # fmt: skip


def _told(receiver) -> list[dict]:
    collect()
    for delivery in due():
        attempt(delivery)
    return [json.loads(body) for _, body in receiver.got]


def test_alertmanager_sees_one_alert_begin_and_end(receiver) -> None:
    create_subscription(
        actor=ACTOR, slug="am", url=receiver.url, events=["finding.opened", "finding.resolved"], format="alertmanager"
    )
    collect()
    observe([Observation("kv_event_gap", "llama/w1", "Gap.")], at=timezone.now())
    _told(receiver)
    resolve(["llama/w1"], ["kv_event_gap"], at=timezone.now())
    first, second = _told(receiver)
    assert set(first) == DOCUMENT_KEYS and first["version"] == "4" and first["receiver"] == "am"
    begun, ended = first["alerts"][0], second["alerts"][0]
    assert set(begun) == ALERT_KEYS
    assert (begun["status"], ended["status"], second["status"]) == ("firing", "resolved", "resolved")
    assert begun["fingerprint"] == ended["fingerprint"] and begun["startsAt"] == ended["startsAt"]
    assert begun["labels"]["alertname"] == "KvEventGap" and begun["endsAt"].startswith("0001-")
    assert ended["endsAt"] > ended["startsAt"]


def test_slack_is_sent_a_text_that_it_cannot_take_for_markup(receiver) -> None:
    create_subscription(actor=ACTOR, slug="chat", url=receiver.url, events=["*"], format="slack")
    collect()
    observe([Observation("xid_error", "llama/w1", "<!channel> & <http://x|y>")], at=timezone.now())
    [message] = _told(receiver)
    assert set(message) == {"text"}
    assert "&lt;!channel&gt; &amp; &lt;http://x|y&gt;" in message["text"] and "<" not in message["text"]


def test_the_alerts_of_this_moment_are_open_findings_and_open_violations() -> None:
    at = timezone.now()
    observe([Observation("xid_error", "llama/w1", "Xid 79."), Observation("gone", "llama/w2", "x")], at=at)
    resolve(["llama/w2"], ["gone"], at=at)
    for number, acknowledged in ((1, None), (2, at)):
        IsolationViolation.objects.create(
            at=at, request_id=f"r{number}", tenant="acme", namespace="acme/support", pool="llama", worker="llama/w1",
            model="m", prompt_tokens=9, cached_tokens=8, bound_tokens=0, acknowledged_at=acknowledged,
        )  # fmt: skip
    client = APIClient()
    client.force_login(User.objects.create_user("vera", role=User.Role.VIEWER))
    document = client.get("/api/v1/alerts").json()
    assert set(document) == DOCUMENT_KEYS and document["status"] == "firing"
    assert sorted(alert["labels"]["alertname"] for alert in document["alerts"]) == ["Bound", "XidError"]
    assert all(set(alert) == ALERT_KEYS for alert in document["alerts"])


def test_nothing_wrong_is_resolved(db) -> None:
    client = APIClient()
    client.force_login(User.objects.create_user("vera", role=User.Role.VIEWER))
    document = client.get("/api/v1/alerts").json()
    assert (document["status"], document["alerts"]) == ("resolved", [])


def test_the_api_makes_changes_tests_and_removes_a_webhook(receiver) -> None:
    client = APIClient()
    client.force_login(User.objects.create_user("olga", role=User.Role.OPERATOR))
    made = client.post("/api/v1/webhooks", {"slug": "ops", "url": receiver.url, "events": ["*"]}, format="json")
    assert made.status_code == 201 and made.json()["secret"].startswith("whsec_")
    shown = client.get("/api/v1/webhooks/ops")
    assert "secret" not in shown.json() and "s3cret" not in shown.content.decode()
    tried = client.post("/api/v1/webhooks/ops/test")
    assert (tried.status_code, tried.json()["state"]) == (200, "delivered")
    changed = client.patch("/api/v1/webhooks/ops", {"events": ["worker.*"]}, format="json", headers={"if-match": '"1"'})
    assert changed.json()["events"] == ["worker.*"] and changed["ETag"] == '"2"'
    wrong = client.patch("/api/v1/webhooks/ops", {"events": ["nothing"]}, format="json", headers={"if-match": "*"})
    assert wrong.status_code == 422 and wrong.json()["errors"][0]["field"] == "events"
    [delivery] = client.get("/api/v1/webhook-deliveries?webhook=ops&state=delivered").json()["items"]
    again = client.post(f"/api/v1/webhook-deliveries/{delivery['id']}/redeliver")
    assert (again.status_code, again.json()["state"]) == (202, "pending")
    assert client.delete("/api/v1/webhooks/ops", headers={"if-match": "*"}).status_code == 204
    assert client.get("/api/v1/webhooks").json()["items"] == []

"""Rules, their preview, silences and acknowledgement over REST."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from controlplane.alerts.evaluation import evaluate
from controlplane.alerts.models import AlertRule
from controlplane.alerts.services import create_rule
from controlplane.audit.models import AuditEntry
from controlplane.errors import Invalid
from controlplane.tenants.models import Membership, Tenant, User
from tests.alerts.conftest import traffic

pytestmark = pytest.mark.django_db
RULE = {
    "slug": "low", "name": "Hit share low", "measure": "hit_share", "comparison": "below", "threshold": 0.5,
    "window_s": 60,
}  # fmt: skip


@pytest.fixture
def client(no_rules) -> APIClient:
    client = APIClient()
    client.force_login(User.objects.create_user("olga", role=User.Role.OPERATOR))
    return client


def _post(client: APIClient, path: str, **body):
    return client.post(f"/api/v1/{path}", body, format="json")


def test_a_rule_is_made_changed_evaluated_and_removed(client, now) -> None:
    made = _post(client, "alert-rules", **RULE)
    assert (made.status_code, made.json()["status"], made["ETag"]) == (201, None, '"1"')
    assert _post(client, "alert-rules", **RULE).status_code == 409
    traffic(now, share=0.1)
    evaluate(now)
    shown = client.get("/api/v1/alert-rules/low").json()
    assert shown["status"]["state"] == "firing" and shown["status"]["value"] == pytest.approx(0.1)
    [alert] = client.get("/api/v1/alert-history?open=true").json()["items"]
    assert (alert["rule"], alert["subject"], alert["state"]) == ("low", "fleet", "firing")
    taken = _post(client, f"alert-history/{alert['id']}/acknowledge", reason="in hand")
    assert taken.json()["acknowledged_by"] == "user:olga"
    changed = client.patch("/api/v1/alert-rules/low", {"for_s": 60}, format="json", headers={"if-match": '"1"'})
    assert changed.json()["for_s"] == 60 and changed["ETag"] == '"2"'
    assert client.delete("/api/v1/alert-rules/low", headers={"if-match": "*"}).status_code == 204
    actions = set(AuditEntry.objects.values_list("action", flat=True))
    assert {"alert_rule.create", "alert_rule.update", "alert_rule.delete", "alert.acknowledge"} <= actions


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"threshold": 50}, "threshold"),
        ({"measure": "mood"}, "measure"),
        ({"clear_at": 0.4}, "clear_at"),
        ({"comparison": "above", "clear_at": 0.6}, "clear_at"),
        ({"measure": "kv_use", "tenant": "acme"}, "tenant"),
        ({"tenant": "nobody"}, "tenant"),
        ({"pool": "nowhere"}, "pool"),
        ({"runbook_url": "javascript:alert(1)"}, "runbook_url"),
        ({"window_s": 5}, "window_s"),
        ({"slug": "No Slug"}, "slug"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_by_field(client, change, field) -> None:
    answer = _post(client, "alert-rules", **(RULE | change))
    assert answer.status_code in (400, 422), answer.content
    if answer.status_code == 422:
        assert field in [error["field"] for error in answer.json()["errors"]]
    assert not AlertRule.objects.exists()


def test_infinity_is_no_threshold(no_rules) -> None:
    with pytest.raises(Invalid) as refused:
        create_rule(actor="user:olga", **(RULE | {"measure": "ttft_p95_ms", "threshold": float("inf")}))
    assert refused.value.errors[0]["field"] == "threshold"


def test_the_preview_says_how_often_and_stores_nothing(client, now) -> None:
    traffic(now - timedelta(minutes=10), share=0.1)
    body = {name: RULE[name] for name in ("measure", "comparison", "threshold", "window_s")}
    found = _post(client, "alert-rules/preview", **body).json()
    assert found["fired"] == 1 and found["episodes"][0]["subject"] == "fleet"
    assert not AlertRule.objects.exists()


def test_a_silence_names_something_and_ends(client) -> None:
    later = (timezone.now() + timedelta(hours=2)).isoformat()
    everything = _post(client, "silences", ends_at=later, reason="all", subject="*")
    assert everything.status_code == 422
    far = (timezone.now() + timedelta(days=31)).isoformat()
    assert _post(client, "silences", ends_at=far, reason="x", pool="llama").json()["errors"][0]["field"] == "ends_at"
    assert _post(client, "silences", ends_at=later, reason="x", rule="none").status_code == 422
    made = _post(client, "silences", ends_at=later, reason="upgrade", pool="llama")
    assert made.status_code == 201 and made.json()["created_by"] == "user:olga"
    ended = _post(client, f"silences/{made.json()['id']}/end")
    assert ended.status_code == 200 and ended.json()["ended_by"] == "user:olga"
    assert _post(client, f"silences/{made.json()['id']}/end").status_code == 409


def test_a_tenants_member_sees_the_tenants_own_rules_alone(client) -> None:
    tenant = Tenant.objects.create(slug="acme", name="Acme")
    _post(client, "alert-rules", **RULE)
    _post(client, "alert-rules", **(RULE | {"slug": "acmes", "tenant": "acme"}))
    alice = User.objects.create_user("alice")
    Membership.objects.create(user=alice, role="viewer", tenant=tenant)
    member = APIClient()
    member.force_login(alice)
    assert [rule["slug"] for rule in member.get("/api/v1/alert-rules").json()["items"]] == ["acmes"]
    assert member.get("/api/v1/alert-rules/low").status_code == 404
    assert _post(member, "alert-rules", **(RULE | {"slug": "mine", "tenant": "acme"})).status_code == 403

"""What a file manages is edited in the file; the levers of an emergency stay with the operator."""

from __future__ import annotations

import pytest
from rest_framework.test import APIClient

from controlplane.declarative.services import apply
from controlplane.namespaces.models import CacheNamespace
from controlplane.tenants.models import User
from tests.declarative.test_files import ACTOR, POOL, TENANT

pytestmark = pytest.mark.django_db
POLICY = """\
---
apiVersion: tidemark/v1
kind: Namespace
metadata: {name: acme/support, managed-by: repo/fleet}
---
apiVersion: tidemark/v1
kind: WatermarkPolicy
metadata: {name: "namespace:acme/support", managed-by: repo/fleet}
spec: {low: 0.4, high: 0.6}
"""
EDITS = [
    ("patch", "tenants/acme", {"name": "Other"}),
    ("patch", "namespaces/acme/support", {"priority": 1}),
    ("patch", "pools/llama", {"block_size": 8}),
    ("patch", "workers/llama/w1", {"url": "http://127.0.0.1:8009"}),
    ("delete", "workers/llama/w1", None),
    ("put", "watermark-policies/namespace:acme/support", {"low": 0.1, "high": 0.2}),
    ("delete", "watermark-policies/namespace:acme/support", None),
]


@pytest.fixture
def operator() -> APIClient:
    apply(TENANT + "---\n" + POOL + POLICY, file="f", actor=ACTOR)
    client = APIClient()
    client.force_login(User.objects.create_user("olga", role=User.Role.ADMIN))
    return client


@pytest.mark.parametrize(("method", "path", "body"), EDITS)
def test_an_edit_by_hand_is_refused_with_the_name_of_the_manager(operator, method, path, body) -> None:
    answer = getattr(operator, method)(f"/api/v1/{path}", body, format="json", headers={"if-match": "*"})
    assert answer.status_code == 409 and answer.json()["code"] == "managed", answer.json()
    assert "repo/fleet" in answer.json()["detail"]
    assert apply(TENANT + "---\n" + POOL + POLICY, file="f", actor=ACTOR) == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("namespaces/acme/support/status", {"status": "suspended"}),
        ("namespaces/acme/support/rotate", {}),
        ("workers/llama/w1/state", {"state": "drain"}),
        ("tenants/acme/status", {"status": "suspended"}),
    ],
)
def test_levers_of_an_emergency_work_whoever_manages_the_object(operator, path, body) -> None:
    answer = operator.post(f"/api/v1/{path}", body | {"reason": "leak"}, format="json", headers={"if-match": "*"})
    assert answer.status_code < 300, answer.json()


def test_a_file_without_the_mark_lets_go(operator) -> None:
    free = TENANT.replace("  managed-by: repo/fleet\n", "")
    assert [step.changes for step in apply(free, file="f", actor=ACTOR)] == [False]
    answer = operator.patch("/api/v1/tenants/acme", {"name": "Other"}, format="json", headers={"if-match": "*"})
    assert answer.status_code == 200
    assert CacheNamespace.objects.get().status == "active"


@pytest.mark.parametrize("how", ["publish", "rollout"])
def test_the_dashboard_says_who_manages_a_policy_and_changes_nothing(operator, client, how: str) -> None:
    client.force_login(User.objects.get(username="olga"))
    typed = {"low": "10", "high": "20", "dwell_s": "0", "seen": "1", "how": how, "reason": "try"}
    answer = client.post("/policies/namespace/acme/support/", typed)
    assert answer.status_code == 409 and "repo/fleet" in answer.content.decode()
    assert apply(TENANT + "---\n" + POOL + POLICY, file="f", actor=ACTOR) == []

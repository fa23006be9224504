"""Onboarding: one call makes a tenant ready to serve, all of it or nothing, once for each Idempotency-Key."""

from __future__ import annotations

import pytest
from django.conf import settings as django_settings

from controlplane.audit.models import AuditEntry
from controlplane.namespaces.models import ApiKey, CacheNamespace
from controlplane.policies.models import WatermarkPolicy
from controlplane.snapshots.selectors import current
from controlplane.tenants.models import Tenant
from router.contract.secrets import split_api_key
from router.contract.snapshot import PolicySnapshot, open_document

BODY = {
    "tenant": {"id": "initech", "name": "Initech", "prefill_tokens_per_s": 5000, "prefill_burst_tokens": 80_000},
    "namespace": {"slug": "reports", "ttft_slo_ms": 900, "priority": 1, "model_names": ["m"]},
    "key": {"name": "app"},
    "watermark": {"low": 0.5, "high": 0.7},
}


def _onboard(api, body=BODY, **headers: str):
    return api.post("/api/v1/onboarding", body, format="json", headers=headers)


def _counts() -> list[int]:
    return [model.objects.count() for model in (Tenant, CacheNamespace, ApiKey, AuditEntry)]


def _published() -> PolicySnapshot:
    return open_document(current().document.encode(), django_settings.FLEET_KEY)[1]


@pytest.mark.django_db(transaction=True)
def test_what_it_answers_is_published_at_once(olga) -> None:
    answer = _onboard(olga)
    assert answer.status_code == 201, answer.content
    shown = answer.json()
    key_id, secret = split_api_key(shown["key"]["key"])
    snapshot = _published()
    assert snapshot.keys[key_id].hash == django_settings.FLEET_KEY.api_key_hash(key_id, secret)
    assert snapshot.keys[key_id].namespace == shown["namespace"]["id"] == "initech/reports"
    tenant, namespace = snapshot.tenants["initech"], snapshot.namespaces["initech/reports"]
    assert (tenant.prefill_tokens_per_s, tenant.prefill_burst_tokens) == (5000, 80_000)
    assert (namespace.ttft_slo_ms, namespace.priority, namespace.models) == (900, 1, ("m",))
    assert namespace.watermark is not None and (namespace.watermark.low, namespace.watermark.high) == (0.5, 0.7)
    assert shown["watermark"]["scope"] == "namespace:initech/reports"


def test_it_leaves_one_trail_under_one_request_id(olga) -> None:
    answer = _onboard(olga)
    trail = AuditEntry.objects.filter(request_id=answer["x-request-id"]).order_by("id")
    assert [entry.action for entry in trail] == ["tenant.create", "namespace.create", "key.issue", "watermark.set"]
    assert {entry.actor for entry in trail} == {"user:olga"}


@pytest.mark.parametrize(
    ("part", "change", "status", "field"),
    [
        ("watermark", {"low": 0.9, "high": 0.5}, 422, "low"),
        ("key", {"name": "k", "expires_at": "2020-01-01T00:00:00Z"}, 422, "expires_at"),
        ("tenant", {"id": "acme", "name": "Acme"}, 409, "slug"),
        ("tenant", {"id": "x", "name": "X", "prefill_burst_tokens": 5}, 422, "prefill_burst_tokens"),
        ("namespace", {"slug": "Bad Slug"}, 422, "slug"),
        ("namespace", {"slug": "reports", "model_names": [""]}, 422, "namespace.model_names.0"),
        ("tenant", {"id": "x", "name": "X", "plan": "gold"}, 422, "tenant.plan"),
    ],
)
def test_when_a_part_is_refused_nothing_is_made(olga, part: str, change: object, status: int, field: str) -> None:
    before = [
        Tenant.objects.count(),
        CacheNamespace.objects.count(),
        ApiKey.objects.count(),
        AuditEntry.objects.count(),
    ]
    answer = _onboard(olga, BODY | {part: change})
    assert answer.status_code == status, answer.content
    assert answer.json()["errors"][0]["field"] == field
    assert _counts() == before


def test_repeated_with_its_key_it_is_the_same_answer_and_one_tenant(olga) -> None:
    first, second = (_onboard(olga, **{"idempotency-key": "initech-1"}) for _ in range(2))
    assert first.status_code == second.status_code == 201
    assert first.json() == second.json()
    assert Tenant.objects.filter(slug="initech").count() == 1 and ApiKey.objects.filter(name="app").count() == 1
    assert _onboard(olga).status_code == 409


def test_the_watermark_is_optional(olga) -> None:
    answer = _onboard(olga, {name: part for name, part in BODY.items() if name != "watermark"})
    assert answer.status_code == 201 and answer.json()["watermark"] is None
    assert not WatermarkPolicy.objects.filter(namespace__tenant__slug="initech").exists()


def test_a_dry_run_leaves_nothing(olga) -> None:
    answer = olga.post("/api/v1/onboarding?dry_run=true", BODY, format="json")
    assert answer.status_code == 201 and answer.json()["tenant"]["id"] == "initech"
    assert not Tenant.objects.filter(slug="initech").exists()

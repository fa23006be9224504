"""Prefix breakers: summed by the hour, told as findings of their namespace, shown to whom they concern."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from controlplane.fleet.models import Finding
from controlplane.isolation.selectors import needs_attention
from controlplane.telemetry.breaks import breakers, observe_breakers
from controlplane.telemetry.ingest import apply_entries
from controlplane.telemetry.models import PrefixBreakRollup
from controlplane.telemetry.tasks import expire_rollups
from controlplane.tenants.models import Membership, Tenant, User
from router.contract.telemetry import PrefixBreaks
from tests.telemetry.shipments import shipment

pytestmark = pytest.mark.django_db
_seq = iter(range(10**6))


def _tell(at: datetime, *rows: PrefixBreaks) -> None:
    applied = apply_entries([shipment(next(_seq), at.timestamp(), breaks=list(rows))], now=at)
    assert applied.applied == 1, applied.refused


def _broken(
    namespace: str, *, prompts: int, looked_at: int, kind: str = "clock", position: int = 96
) -> list[PrefixBreaks]:
    return [
        PrefixBreaks(namespace, "p", "desk@1", prompts=looked_at),
        PrefixBreaks(namespace, "p", "desk@1", kind, position, prompts, 4000 * prompts),
    ]


def test_what_routers_count_is_summed(db) -> None:
    now = timezone.now()
    _tell(now, *_broken("acme/a", prompts=3, looked_at=5))
    _tell(now, *_broken("acme/a", prompts=2, looked_at=5, position=80))
    (found,) = breakers(now=now)
    assert (found.prompts, found.looked_at, found.position_bytes, found.lost_tokens_mean) == (5, 10, 80, 1000)
    assert found.sentence.startswith("50% of 10 prompts differ from byte 80 on by a date or time")


def test_a_namespace_with_a_breaker_is_a_finding_until_it_has_none(db) -> None:
    now = timezone.now()
    _tell(now, *_broken("acme/a", prompts=12, looked_at=20))
    _tell(now, *_broken("acme/b", prompts=3, looked_at=200))  # now and then
    _tell(now, *_broken("acme/c", prompts=9, looked_at=10))  # too few to say
    assert observe_breakers(now=now) == 1
    finding = Finding.objects.get(kind="prefix_breaker")
    assert finding.subject == "acme/a" and "60% of 20 prompts" in finding.message
    (item,) = [item for item in needs_attention(now=now) if item.kind == "prefix_breaker"]
    assert (item.target_kind, item.target_id) == ("namespace", "acme/a")
    assert observe_breakers(now=now + timedelta(hours=4)) == 0
    finding.refresh_from_db()
    assert finding.resolved_at is not None


def test_an_unknown_kind_is_other(db) -> None:
    now = timezone.now()
    _tell(now, *_broken("acme/a", prompts=12, looked_at=20, kind="later"))
    assert [found.kind for found in breakers(now=now)] == ["other"]


def test_old_ones_go(db) -> None:
    now = timezone.now()
    _tell(now, *_broken("acme/a", prompts=12, looked_at=20))
    PrefixBreakRollup.objects.update(start=now - timedelta(days=9))
    expire_rollups()
    assert not PrefixBreakRollup.objects.exists()


def test_a_tenant_sees_its_own(db) -> None:
    now = timezone.now()
    _tell(now, *_broken("acme/a", prompts=12, looked_at=20), *_broken("globex/a", prompts=12, looked_at=20))
    acme = Tenant.objects.create(slug="acme", name="Acme")
    inside, fleet = User.objects.create(username="inside"), User.objects.create(username="fleet")
    Membership.objects.create(user=inside, role="viewer", tenant=acme)
    Membership.objects.create(user=fleet, role="viewer")
    seen = {}
    for user in (inside, fleet):
        client = APIClient()
        client.force_authenticate(user)
        items = client.get("/api/v1/prefix-breakers").json()["items"]
        seen[user.username] = {item["namespace"] for item in items}
        assert client.get("/api/v1/prefix-breakers?hours=0").status_code == 422
        assert client.get("/api/v1/prefix-breakers?colour=1").status_code == 422
    assert seen == {"inside": {"acme/a"}, "fleet": {"acme/a", "globex/a"}}

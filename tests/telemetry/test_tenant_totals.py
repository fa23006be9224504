"""Days of tenants are the sums of their hours, whenever the shipments came."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from controlplane.telemetry.ingest import apply_entries
from controlplane.telemetry.models import TenantTotal
from controlplane.telemetry.tenant_use import use_by_tenant
from controlplane.telemetry.windows import Scope
from tests.telemetry.shipments import row, shipment

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 5, 17, 13, 30, tzinfo=UTC)


def test_a_week_of_tenants_is_what_was_shipped() -> None:
    chance = random.Random(5)
    shipped: Counter[str] = Counter()
    for seq in range(40):
        # Late ones too: rows of a closed day change.
        at = NOW - timedelta(hours=chance.uniform(0.1, 6.9 * 24))
        requests = [row(tenant=f"t{chance.randint(0, 3)}", requests=chance.randint(1, 9)) for _ in range(3)]
        apply_entries([shipment(seq, at.timestamp(), requests=requests)], now=NOW)
        for each in requests:
            shipped[each.tenant] += each.requests
    found = use_by_tenant(Scope(NOW - timedelta(days=7), NOW), now=NOW)
    assert {tenant: use.requests for tenant, use in found.items()} == dict(shipped)
    assert found["t1"].hit_share == pytest.approx(0.4)
    assert TenantTotal.objects.count() > 8
    only = use_by_tenant(Scope(NOW - timedelta(days=7), NOW), now=NOW, tenants=["t2"])
    assert only == {"t2": found["t2"]}


def test_a_shipment_delivered_twice_is_in_its_day_once() -> None:
    entry = shipment(0, (NOW - timedelta(days=2)).timestamp(), requests=[row(), row(tenant="")])
    apply_entries([entry, entry], now=NOW)
    assert list(TenantTotal.objects.values_list("tenant", "requests", "hit_tokens")) == [("acme", 2, 40)]

"""Rows that were there before the totals are summed up by the migration."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from importlib import import_module

import pytest
from django.apps import apps

from controlplane.telemetry.models import RequestRollup, RequestTotal, TenantTotal, WorkerRollup, WorkerTotal

START = datetime(2026, 5, 17, 12, tzinfo=UTC)


@pytest.mark.django_db
def test_totals_are_made_of_the_rows_that_are_there():
    for width_s, worker, requests in ((10, "p/w1", 1), (10, "p/w2", 2), (60, "p/w1", 3), (60, "p/w2", 4)):
        RequestRollup.objects.create(
            width_s=width_s, start=START, pool="p", worker=worker, model="m", requests=requests,
            ttft_hit={"4": requests}, saved_prefill_ms=0.5,
        )  # fmt: skip
    RequestTotal.objects.all().delete()
    import_module("controlplane.telemetry.migrations.0004_request_totals").sum_up(apps, None)
    totals = RequestTotal.objects.order_by("width_s").values_list("width_s", "requests", "ttft_hit", "saved_prefill_ms")
    assert list(totals) == [(10, 3, {"4": 3}, 1.0), (60, 7, {"4": 7}, 1.0)]


@pytest.mark.django_db
def test_totals_of_workers_are_made_of_the_rows_that_are_there():
    for worker, seconds, use in (("p/w1", 10, 0.4), ("p/w2", 5, 0.7), ("q/w1", 0, 0.1)):
        WorkerRollup.objects.create(
            width_s=10, start=START, worker=worker, kv_samples=seconds, stored_blocks=seconds * 2, kv_use_max=use,
            kv_use_samples=2, delta_samples=1, prompt_tokens_by_source={"local_compute": 7},
        )  # fmt: skip
    WorkerTotal.objects.all().delete()
    import_module("controlplane.telemetry.migrations.0009_worker_totals").sum_up(apps, None)
    fields = ("pool", "stored_per_min", "kv_use_max", "kv_samples", "prompt_tokens_by_source")
    assert list(WorkerTotal.objects.order_by("pool").values_list(*fields)) == [
        ("p", 240.0, 0.7, 15, {"local_compute": 14}),
        ("q", 0.0, 0.1, 0, {"local_compute": 7}),
    ]


@pytest.mark.django_db
def test_totals_of_tenants_are_made_of_the_hours_that_are_there():
    """Minutes of the same requests are no second helping."""
    for width_s, hours, tenant in ((3600, 0, "a"), (3600, 11, "a"), (3600, 12, "a"), (60, 0, "a"), (3600, 1, "")):
        RequestRollup.objects.create(
            width_s=width_s, start=START + timedelta(hours=hours), tenant=tenant, worker="p/w1", requests=2, slo_met=1
        )
    import_module("controlplane.telemetry.migrations.0012_tenant_totals").sum_up(apps, None)
    totals = TenantTotal.objects.order_by("start").values_list("width_s", "start", "tenant", "requests", "slo_met")
    midnight = START.replace(hour=0)
    assert list(totals) == [(86_400, midnight, "a", 4, 2), (86_400, midnight + timedelta(days=1), "a", 2, 1)]

"""A tenant's report holds that tenant alone, and only its own people and the fleet's see it."""

from __future__ import annotations

import json

import pytest
from django.test import Client
from rest_framework.test import APIClient

from controlplane.reports.models import ReportRun
from controlplane.telemetry.models import RequestRollup
from controlplane.tenants.roles import Role
from tests.identity.world import make_user
from tests.reports.conftest import made, schedule

pytestmark = pytest.mark.django_db
DAYS = 3


@pytest.fixture(scope="module")
def run(month) -> ReportRun:
    return made(schedule("acme-weekly", scope="tenant", subject="acme", recipients=[_READER]))


_READER = {"kind": "email", "to": "ops@example.com"}


def test_it_names_nobody_else_and_nothing_of_the_fleet(run: ReportRun) -> None:
    for text in (json.dumps(run.figures), *(_text(file) for file in run.files.exclude(format__in=("pdf", "csv")))):
        for foreign in ("globex", "llama/w1", "llama/w2", "olga", "127.0.0.1", "desk@2"):
            assert foreign not in text, foreign
    assert run.figures["workers"] == [] and run.figures["pools"] == [] and not run.figures["what_if"]["available"]


def test_its_figures_are_the_tenants_own_rows(run: ReportRun) -> None:
    rows = [
        row for row in RequestRollup.objects.filter(width_s=3600, tenant="acme") if run.from_at <= row.start < run.to_at
    ]
    assert rows and run.figures["summary"]["prompt_tokens"] == sum(row.prompt_tokens for row in rows)
    assert {row["name"] for row in run.figures["tenants"]} == {"acme/support", "acme/search"}
    assert all(row["namespace"].startswith("acme/") for row in run.figures["prefixes"])
    assert [row["object"] for row in run.figures["changes"]["rows"]] == ["acme/support"]


def test_alice_and_bob_see_it_and_charlie_sees_nothing(run: ReportRun, fleet_run: ReportRun) -> None:
    addresses = (f"/reports/runs/{run.pk}/", f"/reports/runs/{run.pk}/files/json/")
    people = {"alice": ("acme", Role.TENANT_ADMIN), "bob": ("acme", Role.VIEWER), "charlie": ("globex", Role.VIEWER)}
    for name, (tenant, role) in people.items():
        client = Client()
        client.force_login(make_user(name, role, tenant=tenant))
        own = tenant == "acme"
        assert [client.get(path).status_code for path in addresses] == ([200, 200] if own else [404, 404])
        page = client.get("/reports/").content.decode()
        assert ("acme-weekly" in page) == own and "fleet-monthly" not in page
        assert "ops@example.com" not in page + client.get(addresses[0]).content.decode()
        assert client.get(f"/reports/runs/{fleet_run.pk}/").status_code == 404
        assert client.post(f"/reports/{run.schedule_id}/run/").status_code == 403


def test_the_api_shows_the_same_to_them(run: ReportRun, fleet_run: ReportRun) -> None:
    client = APIClient()
    client.force_authenticate(make_user("bob-by-api", Role.VIEWER, tenant="acme"))
    [row] = client.get("/api/v1/report-schedules").json()["items"]
    assert (row["slug"], row["recipients"]) == ("acme-weekly", None)
    [told] = client.get("/api/v1/report-runs").json()["items"]
    assert told["id"] == run.pk
    detail = client.get(f"/api/v1/report-runs/{run.pk}").json()
    assert detail["figures"]["subject"] == "acme" and detail["deliveries"] is None
    absent = client.get("/api/v1/report-runs/999999").json()
    foreign = client.get(f"/api/v1/report-runs/{fleet_run.pk}").json()
    assert {**foreign, "request_id": ""} == {**absent, "request_id": ""}
    assert client.get(f"/api/v1/report-runs/{fleet_run.pk}/files/json").status_code == 404


def _text(file) -> str:
    return bytes(file.content).decode()

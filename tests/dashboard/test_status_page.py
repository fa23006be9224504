"""A tenant's status page: the verdict, the figures against objective and budget, and nothing of anybody else."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.test import Client

from controlplane.fleet.findings import Observation, observe
from controlplane.fleet.models import Finding
from controlplane.telemetry.ingest import apply_entries
from controlplane.tenants.models import Tenant
from dashboard import fragments, tenant_status
from dashboard.data import PageData
from dashboard.scope import PageState
from router.contract.telemetry import RequestRow, Shipment, encode_shipment
from tests.dashboard import story
from tests.dashboard.people import html_of

pytestmark = pytest.mark.django_db


def _verdict(now: datetime, tenant: str = "acme") -> tuple[str, str]:
    found = tenant_status.verdict_of(PageData(PageState(tenant=tenant), now))
    return found.level, found.title


def _had(now: datetime, **fields: object) -> None:
    row = RequestRow(tenant="initech", namespace="initech/reports", pool="demo", worker="demo/w1", model="m", **fields)  # type: ignore[arg-type]
    shipment = Shipment(source="r9", boot="b", seq=1, at=now.timestamp() - 2, requests=[row])
    assert not apply_entries([encode_shipment(shipment)], now=now).refused


@pytest.mark.parametrize(
    ("fields", "level", "words"),
    [
        ({"requests": 100, "slo_known": 100, "slo_met": 99}, "ok", "Served well"),
        ({"requests": 100, "errors": {"upstream_error": 2}}, "warn", "2.0 % of requests failed"),
        ({"requests": 100, "errors": {"rate_limited": 10}}, "crit", "10.0 % of requests failed or were refused"),
        ({"requests": 100, "errors": {"client_disconnect": 50}}, "ok", "Served well"),
        ({"requests": 100, "slo_known": 100, "slo_met": 93}, "warn", "7.0 % of answers missed"),
        ({"requests": 100, "slo_known": 100, "slo_met": 80}, "crit", "20.0 % of answers missed"),
    ],
)
def test_the_verdict_is_what_its_requests_had(now: datetime, fields: dict, level: str, words: str) -> None:
    story.make_fleet()
    _had(now, **fields)
    found = _verdict(now, "initech")
    assert found[0] == level and words in found[1]


def test_the_verdict_is_unknown_without_requests_and_when_routers_are_silent(now: datetime) -> None:
    story.make_fleet()
    assert _verdict(now)[0] == "unknown"
    _had(now, requests=100)
    assert _verdict(now) == ("unknown", "No request in this range")
    assert _verdict(now + timedelta(minutes=2), "initech")[1].startswith("No router has reported lately")


def test_a_suspended_tenant_and_a_critical_finding_come_first(now: datetime) -> None:
    story.make_fleet()
    _had(now, requests=100, slo_known=100, slo_met=100)
    observe([Observation("isolation_violation", "initech/reports", "Boundary.", Finding.Severity.CRITICAL)], at=now)
    assert _verdict(now, "initech") == ("crit", "1 critical finding")
    Tenant.objects.filter(slug="initech").update(status="suspended")
    assert _verdict(now, "initech") == ("crit", "initech is suspended: its requests are refused")


def test_it_shows_the_tenants_own_incidents_and_no_workers(alice: Client, now: datetime) -> None:
    observe([Observation("prefix_breaker", "acme/support", "A clock in front."),
             Observation("prefix_breaker", "globex/agents", "Another's clock."),
             Observation("template_regression", "acme/desk@2", "Other tokens."),
             # A pool may be called as the tenant is.
             Observation("poll_failed", "acme/w1", "3 polls in a row failed.")], at=now)  # fmt: skip
    body = html_of(alice, "/status/acme/")
    assert "A clock in front." in body and "Other tokens." in body
    assert "Another" not in body and "polls in a row" not in body


@pytest.mark.parametrize(
    "path",
    [
        "/status/acme/",
        "/fragments/status/?tenant=acme",
        "/charts/status_hits.csv?tenant=acme",
        "/charts/status_ttft/table/?tenant=acme",
        "/charts/status_budget.csv?tenant=acme",
    ],
)
def test_nothing_of_anybody_else_is_in_it(alice: Client, path: str) -> None:
    body = html_of(alice, path)
    for words in ("globex", "initech", "demo/w", "127.0.0.1:29"):
        assert words not in body, words


@pytest.mark.parametrize(
    "path",
    [
        "/status/globex/",
        "/status/nobody/",
        "/fragments/status/?tenant=globex",
        "/charts/status_hits.csv?tenant=globex",
        "/fragments/panel/status_tiles/?tenant=globex",
    ],
)
def test_another_tenants_status_does_not_exist(alice: Client, path: str) -> None:
    assert alice.get(path).status_code == 404


def test_the_address_names_the_tenant_whatever_the_query_says(alice: Client, viewer: Client) -> None:
    assert "Status of acme" in html_of(alice, "/status/acme/?tenant=globex&ns=globex/agents")
    body = html_of(viewer, "/status/acme/?tenant=globex&ns=globex/agents")
    assert "globex" not in body.replace("/?tenant=globex", "")
    assert viewer.get("/status/nobody/").status_code == 404
    assert alice.get("/status/")["location"].startswith("/status/acme/")
    assert viewer.get("/status/")["location"].startswith("/tenants/")


def test_its_figures_are_those_of_its_own_requests(now: datetime) -> None:
    story.make_fleet()
    Tenant.objects.filter(slug="initech").update(prefill_tokens_per_s=50.0)
    _had(now, requests=10, prompt_tokens=4000, hit_tokens=3000, hit_prompt_tokens=4000, hit_known=10, usage_known=10,
         slo_known=10, slo_met=9)  # fmt: skip
    fragments.forget()
    data = PageData(PageState(tenant="initech"), now)
    tiles = {tile.key: tile for tile in tenant_status.tiles_of(data)}
    assert tiles["tenant-hit-share"].parts[0].value == "75.0"
    assert tiles["tenant-goodput"].parts[0].value == "90.0" and tiles["tenant-goodput"].tone == "warn"
    assert tiles["tenant-prefill"].note == "budget 50 tok/s on each router"
    assert tiles["tenant-ttft"].note == "p95; objective 1.5 s"
    assert "75.0 %" in tenant_status.verdict_of(data).sentence

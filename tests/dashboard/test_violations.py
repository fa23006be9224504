"""Violations on the Isolation page: filtered, paged, taken away, acknowledged, and what a tenant's members see."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from controlplane.fleet.findings import Observation, observe
from controlplane.fleet.models import Worker
from controlplane.isolation.models import CanaryResult, IsolationViolation
from controlplane.tenants.models import Membership, Tenant
from dashboard.views import isolation as views
from tests.dashboard import story

pytestmark = pytest.mark.django_db


def _violation(number: int, tenant: str, now: datetime, **values: object) -> IsolationViolation:
    given = {
        "at": now - timedelta(minutes=number % 10), "request_id": f"req-{number:04}", "tenant": tenant,
        "namespace": f"{tenant}/support", "pool": "demo", "worker": "demo/w1", "model": "sim-llama",
        "prompt_tokens": 4096, "cached_tokens": 2048, "bound_tokens": 512, "evidence": f"{number % 2:032x}",
    } | values  # fmt: skip
    return IsolationViolation.objects.create(**given)


@pytest.fixture
def found(fleet: None, now: datetime) -> None:
    _violation(1, "acme", now)
    _violation(2, "acme", now, acknowledged_at=now, acknowledged_by="user:ada", acknowledgement="seen")
    _violation(3, "globex", now, severity="warning")
    _violation(4, "globex", now, kind="ttft", ttft_ms=3, expected_ms=90)
    observe([Observation("isolation_violation", "acme/support", "1 answer had more.", "critical")], at=now)
    observe([Observation("isolation_violation", "globex/support", "2 answers had more.", "critical")], at=now)


def _member(role: str) -> Client:
    user = story.make_user(f"{role}-of-acme", role="")
    Membership.objects.create(user=user, role=role, tenant=Tenant.objects.get(slug="acme"))
    client = Client()
    client.force_login(user)
    return client


def _shown(client: Client, query: str = "") -> set[str]:
    html = client.get(f"/isolation/{query}").content.decode().partition('id="violations"')[2]
    return set(re.findall(r"<code>(req-[0-9]{4})</code>", html))


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ("", "1234"),
        ("?open=1", "134"),
        ("?severity=warning", "3"),
        ("?kind=ttft", "4"),
        ("?evidence=00000000000000000000000000000001", "13"),
        ("?request_id=req-0002", "2"),
        ("?tenant=acme", "12"),
        ("?tenant=acme&open=1", "1"),
        ("?severity=nonsense", "1234"),
    ],
)
def test_they_are_filtered_by_the_address(found: None, viewer: Client, query: str, numbers: str) -> None:
    assert _shown(viewer, query) == {f"req-000{number}" for number in numbers}


def test_they_are_paged(found: None, viewer: Client, monkeypatch) -> None:
    monkeypatch.setattr(views, "PAGE_ROWS", 3)
    first, second = _shown(viewer), _shown(viewer, "?page=2")
    assert len(first) == 3 and len(second) == 1 and not first & second


def test_the_export_is_of_what_is_shown(found: None, viewer: Client) -> None:
    html = viewer.get("/isolation/?tenant=globex&kind=ttft").content.decode()
    address = html.partition('href="/api/v1/violations.json?')[2].partition('"')[0].replace("&amp;", "&")
    rows = viewer.get(f"/api/v1/violations.json?{address}")
    body = b"".join(rows.streaming_content).decode()
    assert "req-0004" in body and "req-0003" not in body and "req-0001" not in body


def test_the_matrix_tells_ages_and_begins_with_the_gravest(found: None, viewer: Client, now: datetime) -> None:
    for slug, verdict, minutes in (("w1", "green", 12), ("w2", "red", 3), ("w3", "green", 180)):
        for endpoint in ("chat", "completions", "responses", "messages", "embeddings"):
            CanaryResult.objects.create(
                worker=Worker.objects.get(slug=slug), endpoint=endpoint, model="m", verdict=verdict, reason="r",
                checked_at=now - timedelta(minutes=minutes), duration_ms=1,
            )  # fmt: skip
    html = viewer.get("/isolation/").content.decode()
    panel = html.partition('id="panel-canaries"')[2].partition("</section>")[0]
    assert panel.index("demo/w2") < panel.index("demo/w3") < panel.index("demo/w4") < panel.index("demo/w1")
    assert "10 of 20 isolated" in panel and "5 leak" in panel and "5 older than 2 h" in panel and "5 never" in panel
    assert "12 min" in panel and "3 h, old" in panel


def test_a_tenants_member_sees_its_own_alone(found: None) -> None:
    alice = _member("viewer")
    assert _shown(alice) == {"req-0001", "req-0002"}
    html = alice.get("/isolation/").content.decode()
    assert "Answers checked" in html and "acme/support" in html
    for foreign in ("globex", "panel-canaries", "Shared caches", "TTFT audits", "findings.csv"):
        assert foreign not in html, foreign
    assert alice.get("/isolation/?tenant=globex").status_code == 404


def test_its_security_officer_acknowledges_its_own_and_no_other(found: None) -> None:
    officer = _member("security")
    own = IsolationViolation.objects.get(request_id="req-0001")
    other = IsolationViolation.objects.get(request_id="req-0003")
    officer.post(f"/isolation/{own.pk}/acknowledge/", {"reason": "A test of ours."})
    own.refresh_from_db()
    assert own.acknowledgement == "A test of ours."
    assert officer.post(f"/isolation/{other.pk}/acknowledge/", {"reason": "x"}).status_code == 404
    assert officer.post("/isolation/999/acknowledge/", {"reason": "x"}).status_code == 404
    assert _member("viewer").post(f"/isolation/{other.pk}/acknowledge/", {"reason": "x"}).status_code == 403


def test_it_asks_few_queries(found: None, viewer: Client) -> None:
    with CaptureQueriesContext(connection) as asked:
        assert viewer.get("/isolation/").status_code == 200
    assert len(asked) <= 12, [query["sql"][:120] for query in asked.captured_queries]

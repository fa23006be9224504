"""Pages: sign-in, roles, empty database, cost in queries, what an operator reads."""

from __future__ import annotations

from datetime import datetime

import pytest
import time_machine
from django.test import Client
from django.urls import get_resolver

from controlplane.audit.models import AuditEntry
from controlplane.fleet.models import Worker
from controlplane.isolation.models import IsolationViolation
from controlplane.tenants.models import Tenant
from dashboard import live_pages
from dashboard.panels import CHARTS, PANELS
from tests.dashboard import story

PAGES = ("/", "/workers/", "/policies/", "/isolation/", "/requests/", "/templates/", "/tenants/")
QUERIES_MAX = 25
"""Two for session and user; the fleet page asks each selector once, and shares the answers for a second."""

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("path", [*PAGES, "/fragments/fleet/", "/fragments/panel/tiles/", "/charts/ttft.csv"])
def test_it_leads_strangers_to_the_sign_in_page(client: Client, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 302
    assert answer["Location"].startswith("/accounts/login/")


def test_it_guards_every_address_of_the_dashboard(client: Client) -> None:
    samples = {
        "name": "fleet",
        "worker_id": "demo/w1",
        "state": "drain",
        "kind": "global",
        "request_id": "r",
        "violation_id": 1,
        "alert_id": 1,
        "silence_id": 1,
        "note_id": 1,
        "what_if_id": 1,
        "delivery_id": 1,
        "letter_id": 1,
        "form": "csv",
        "placement_id": 1,
        "pool": "demo",
        "prefix": "ab12",
        "wanted": "suspended",
        "key_id": "k",
        "subject": "acme",
        "epoch": 1,
        "schedule_id": 1,
        "run_id": 1,
        "subject_id": 1,
        "format": "csv",
        "token": "guessed",
        "finding_id": 1,
        "change_id": 1,
        "rollout_id": 1,
        "tenant": "acme",
        "slug": "desk",
        "version": 1,
        "step": "advance",
        "token_id": "t",
        "view_id": 1,
        "scope": "global",
        "number": 1,
    }
    for pattern in get_resolver("dashboard.urls").url_patterns:
        path = "/" + str(pattern.pattern)
        for key in pattern.pattern.converters:
            path = path.replace(f"<{_kind(pattern, key)}{key}>", str(samples[key]))
        if path.startswith("/reports/shared/"):
            assert client.get(path).status_code == 404, "a link is its own key, and this one is guessed"
            continue
        for answer in (client.get(path), client.post(path)):
            assert answer.status_code in (302, 405), path
            assert answer.status_code == 405 or "/accounts/login/" in answer["Location"], path


def _kind(pattern: object, key: str) -> str:
    text = str(pattern.pattern)  # type: ignore[attr-defined]
    return next(kind for kind in ("slug:", "path:", "int:", "str:", "") if f"<{kind}{key}>" in text)


def test_it_signs_in_and_out(client: Client) -> None:
    story.make_user("olga")
    form = {"login": "olga", "password": story.PASSWORD}
    assert client.post("/accounts/login/", form).status_code == 302
    assert client.get("/").status_code == 200
    assert client.post("/accounts/logout/").status_code == 302
    assert client.get("/").status_code == 302


@pytest.mark.parametrize("path", PAGES)
def test_it_shows_an_empty_database_as_missing_not_as_zero(viewer: Client, path: str) -> None:
    answer = viewer.get(path)
    assert answer.status_code == 200
    text = answer.content.decode()
    assert 'class="empty"' in text
    assert "0.0 %" not in text and "0 ms" not in text
    assert "NaN" not in text and "None" not in text


@pytest.mark.parametrize(
    "path", [*PAGES, "/workers/demo/w1/", "/policies/pool/demo/", "/policies/namespace/acme/support/"]
)
def test_it_renders_a_busy_fleet_within_its_query_budget(
    operator: Client, fleet: None, path: str, django_assert_max_num_queries: object
) -> None:
    with django_assert_max_num_queries(QUERIES_MAX):  # type: ignore[operator]
        answer = operator.get(path)
    assert answer.status_code == 200
    assert "style=" not in answer.content.decode(), "the content security policy refuses inline styles"


def test_it_costs_nothing_more_to_look_at_the_same_within_a_second(
    operator: Client, fleet: None, django_assert_max_num_queries: object
) -> None:
    operator.get("/")
    with django_assert_max_num_queries(2):  # type: ignore[operator]
        operator.get("/fragments/fleet/")


NEED_A_TENANT = {"status_verdict", "status_tiles", "status_budget", "status_namespaces"}


def test_it_renders_each_panel_alone(viewer: Client, fleet: None) -> None:
    for name in PANELS:
        # Those of the status page speak of the tenant that the address names, and of nobody without one.
        text = viewer.get(f"/fragments/panel/{name}/?tenant=acme").content.decode().strip()
        assert text.startswith("<section"), name
        assert viewer.get(f"/fragments/panel/{name}/").status_code in ((200, 404) if "status_" in name else (200,)), (
            name
        )
        assert f'id="panel-{name}"' in text
        assert text.count("<section") == 1, name


def test_it_pushes_and_polls_what_the_page_showed(viewer: Client, fleet: None) -> None:
    shown = viewer.get("/").content.decode()
    polled = viewer.get("/fragments/fleet/").content.decode()
    for name in live_pages.PAGES["fleet"].panels:
        assert f'id="panel-{name}"' in polled
    assert polled.split('id="panel-tiles"')[1][:2000] in shown


def test_it_says_whether_the_fleet_is_healthy_and_whether_caching_pays(
    viewer: Client, fleet: None, now: datetime
) -> None:
    with time_machine.travel(now, tick=False):
        text = viewer.get("/").content.decode()
    assert "Fleet is healthy" in text
    assert "Caching served" in text and "sooner than a miss" in text


def test_it_names_what_is_wrong_first(viewer: Client, fleet: None, now: datetime) -> None:
    story.trouble(now)
    text = viewer.get("/").content.decode()
    assert "A tenant&#x27;s boundary was crossed" in text
    assert 'data-level="crit"' in text
    assert text.index("more cached tokens") < text.index("KV event messages of demo/w4")


def test_it_narrows_to_a_tenant_and_keeps_it_in_links(viewer: Client, fleet: None) -> None:
    text = viewer.get("/?tenant=globex&from=-1h").content.decode()
    assert "tenant=globex" in text and "from=-1h" in text
    assert viewer.get("/?tenant=nobody").content.decode().count("No first tokens were measured") == 1


def test_it_says_when_the_range_is_not_understood(viewer: Client) -> None:
    assert "time range is not understood" in viewer.get("/?from=banana").content.decode()


def test_it_escapes_names_that_are_markup(operator: Client, fleet: None, now: datetime) -> None:
    evil = "<script>alert(1)</script>"
    Tenant.objects.filter(slug="acme").update(name=evil)
    Worker.objects.filter(slug="w1").update(
        facts={"version": evil, evil: evil}, test_report=[{"check": evil, "ok": None, "message": evil}]
    )
    story.trouble(now)
    IsolationViolation.objects.update(model=evil, namespace=evil)
    for path in (*PAGES, "/workers/demo/w1/", f"/?tenant={evil}", f"/requests/?outcome={evil}"):
        assert evil not in operator.get(path).content.decode(), path


OVER_TIME = {"sources", "hits", "ttft", "heat", "churn", "imbalance", "watermark_bands", "prefix_trend"}
"""Charts with a row for each bucket; the rows of others are workers, namespaces, decisions, durations."""
OF_ONE_THING = {"prefix_trend", "evicters"}
"""Charts without a value until something is named, or seen."""


def test_it_offers_each_chart_as_table_and_csv(viewer: Client, fleet: None) -> None:
    assert set(CHARTS) >= OVER_TIME
    for name in CHARTS:
        table = viewer.get(f"/charts/{name}/table/", headers={"HX-Request": "true"}).content.decode()
        assert table.lstrip().startswith("<div"), name
        assert "<td" in table or name in OF_ONE_THING, name
        page = viewer.get(f"/charts/{name}/table/").content.decode()
        assert 'id="main"' in page and f"/charts/{name}.csv" in page and "data-close-table" not in page, name
        csv = viewer.get(f"/charts/{name}.csv")
        assert csv["Content-Type"].startswith("text/csv")
        lines = csv.content.decode().splitlines()
        assert "," in lines[0], name
        assert (lines[0].startswith("from,") and len(lines) > 50) or name not in OVER_TIME, name


MISSING = (
    "/charts/nope.csv",
    "/charts/tiles/table/",
    "/fragments/nope/",
    "/fragments/panel/nope/",
    "/workers/demo/none/",
    "/requests/none/",
    "/policies/planet/mars/",
)


@pytest.mark.parametrize("path", MISSING)
def test_it_answers_what_does_not_exist_with_a_page(operator: Client, path: str) -> None:
    answer = operator.get(path)
    assert answer.status_code == 404
    assert "There is no such page" in answer.content.decode()


def test_it_lets_a_viewer_see_but_not_change(viewer: Client, fleet: None) -> None:
    for path in (
        "/workers/demo/w1/state/drain/",
        "/workers/demo/w1/test/",
        "/workers/add/",
        "/policies/global/",
        "/isolation/1/acknowledge/",
    ):
        answer = viewer.post(path, {"low": "10", "high": "20"})
        assert answer.status_code == 403, path
        assert "role" in answer.content.decode()
    assert not AuditEntry.objects.exists()
    assert "Drain" not in viewer.get("/workers/").content.decode()


def test_it_refuses_a_change_without_its_token(fleet: None) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(story.make_user("mallory"))
    answer = client.post("/workers/demo/w1/state/drain/")
    assert answer.status_code == 403
    assert "Nothing was changed" in answer.content.decode()
    assert Worker.objects.get(slug="w1").state == "ready"


def test_it_states_the_cost_before_it_drains(operator: Client, fleet: None) -> None:
    asked = operator.get("/workers/demo/w2/state/drain/").content.decode()
    assert "requests running" in asked and "3 other ready workers remain" in asked
    assert Worker.objects.get(slug="w2").state == "ready"
    answer = operator.post("/workers/demo/w2/state/drain/", {"reason": "firmware"}, follow=True)
    assert "finishes what it has" in answer.content.decode()
    assert Worker.objects.get(slug="w2").state == "drain"
    entry = AuditEntry.objects.get(action="worker.drain")
    assert (entry.actor, entry.reason) == ("user:olga", "firmware")


def test_it_refuses_a_worker_address_outside_the_allowed_networks(operator: Client, fleet: None) -> None:
    answer = operator.post("/workers/add/", {"pool": "demo", "slug": "w9", "url": "http://169.254.169.254:80"})
    assert answer.status_code == 422
    assert "field-error" in answer.content.decode()
    assert not Worker.objects.filter(slug="w9").exists()


def test_it_acknowledges_a_violation_with_a_reason(operator: Client, fleet: None, now: datetime) -> None:
    story.trouble(now)
    violation = IsolationViolation.objects.get()
    operator.post(f"/isolation/{violation.pk}/acknowledge/", {"reason": ""})
    violation.refresh_from_db()
    assert violation.acknowledged_at is None
    operator.post(f"/isolation/{violation.pk}/acknowledge/", {"reason": "usage of a warm-up prompt"})
    violation.refresh_from_db()
    assert violation.acknowledged_by == "user:olga"
    assert "warm-up prompt" in operator.get("/isolation/").content.decode()


def test_it_explains_a_sampled_request(viewer: Client, fleet: None) -> None:
    listed = viewer.get("/requests/").content.decode()
    assert "/requests/req-" in listed
    card = viewer.get("/requests/req-0000000c/").content.decode()
    assert "saves 341 ms of prefill" in card
    assert "left out: drain" in card and "chosen" in card

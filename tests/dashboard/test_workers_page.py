"""Workers: the table is sorted, filtered and cut into pages by its address; leaving states its consequences first."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import pytest
from django.test import Client

from controlplane.audit.models import AuditEntry
from controlplane.fleet.models import Worker, WorkerPool, WorkerStatus
from controlplane.fleet.services import set_worker_state
from controlplane.telemetry.ingest import apply_entries
from dashboard import fragments
from router.contract.telemetry import Calibration, RouterState, Shipment, encode_shipment
from tests.dashboard import story

pytestmark = pytest.mark.django_db
QUERIES_MAX = 12
MANY = 120


@pytest.fixture
def learnt(fleet: None, now: datetime) -> None:
    tell_learnt(now)


def tell_learnt(now: datetime) -> None:
    """A router's word of what it has learnt: w2 is far slower than configured, w3 has no sample of its own."""
    calibration = {
        "demo/w1": Calibration(9100.0, 40, 2.0, 0.99),
        "demo/w2": Calibration(5000.0, 300, 1.0, 0.62),
        "demo/w3": Calibration(9000.0),
        "demo/w4": Calibration(8800.0, 12, 60.0, 1.0),
    }
    state = RouterState(
        snapshot_version=12, snapshot_age_s=1.0, inflight=9, index_blocks=1, index_bytes=1, calibration=calibration,
        worker_outstanding={"demo/w2": 9}, worker_states={"demo/w2": "full"},
    )  # fmt: skip
    shipment = Shipment(source="router-9", boot="b", seq=1, at=now.timestamp() - 1, router=state)
    assert not apply_entries([encode_shipment(shipment)], now=now).refused


def seed() -> None:
    """For a site of its own: calibration, and a worker that drains."""
    tell_learnt(story.utc_now())
    set_worker_state("demo/w3", actor="user:olga", state="drain", reason="new driver")


def _order(client: Client, query: str = "") -> list[str]:
    fragments.forget()
    text = client.get(f"/workers/?{query}").content.decode().partition('id="panel-workers"')[2]
    return re.findall(r'<tr data-health="\w+">\s*<td><a href="/workers/demo/(\w+)/', text)


def test_the_table_tells_what_was_learnt_against_what_is_configured(viewer: Client, learnt: None) -> None:
    text = viewer.get("/workers/").content.decode()
    assert "5 k/s" in text and "−44.4 %" in text, "5,000 against 9,000"
    assert "300 samples, the newest" in text and "configured 9,000 tokens/s" in text
    assert "above watermark" in text and "62.0 %" in text
    assert "No first byte has taught a router yet" in text


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("", ["w1", "w2", "w3", "w4"]),
        ("-name", ["w4", "w3", "w2", "w1"]),
        ("-rate", ["w1", "w4", "w2", "w3"]),
        ("rate", ["w2", "w4", "w1", "w3"]),
        ("credit", ["w2", "w1", "w3", "w4"]),
        ("nonsense", ["w1", "w2", "w3", "w4"]),
    ],
)
def test_it_is_sorted_and_unknown_comes_last(viewer: Client, learnt: None, sort: str, order: list[str]) -> None:
    assert _order(viewer, f"sort={sort}") == order


def test_a_heading_says_how_it_is_sorted_and_turns_it(viewer: Client, learnt: None) -> None:
    text = viewer.get("/workers/?sort=-rate").content.decode()
    assert re.search(r'aria-sort="descending"><a href="/workers/\?sort=rate&', text)


def test_it_is_narrowed_by_kind_and_text(viewer: Client, learnt: None, now: datetime) -> None:
    set_worker_state("demo/w2", actor="user:olga", state="drain")
    WorkerStatus.objects.filter(worker__slug="w4").update(consecutive_failures=5, error="refused")
    assert _order(viewer, "only=leaving") == ["w2"]
    assert _order(viewer, "only=away") == ["w4"]
    assert _order(viewer, "only=ready") == ["w1", "w3"]
    assert _order(viewer, "q=w3") == ["w3"]
    assert _order(viewer, "q=W3&only=away") == []
    assert "No worker is like that" in viewer.get("/workers/?q=nosuch").content.decode()


def test_many_workers_come_in_pages(viewer: Client, learnt: None) -> None:
    pool = WorkerPool.objects.get(slug="demo")
    Worker.objects.bulk_create(
        Worker(pool=pool, slug=f"x{number:03}", url=f"http://127.0.0.1:{20000 + number}") for number in range(MANY)
    )
    first, last = _order(viewer, "q=x"), _order(viewer, "q=x&page=3")
    assert (len(first), first[0]) == (50, "x000") and (len(last), last[-1]) == (20, "x119")
    text = viewer.get("/workers/?q=x&page=2").content.decode()
    assert "page 2 of 3" in text and "120 of 124" in text and "page=3" in text and "page=1" in text


def test_links_to_other_pages_leave_the_list_behind(viewer: Client, learnt: None) -> None:
    text = viewer.get("/workers/?q=w&sort=-rate&only=ready&from=-1h").content.decode()
    policies = re.search(r'href="/policies/\?([^"]*)"', text)
    assert policies is not None and "from=-1h" in policies[1]
    assert "sort" not in policies[1] and "only" not in policies[1] and "q=" not in policies[1]


def test_consequences_are_stated_before_a_worker_drains(operator: Client, learnt: None) -> None:
    text = operator.get("/workers/demo/w2/state/drain/").content.decode()
    assert "requests running" in text and "3 other ready workers remain" in text
    assert "hot prefixes" in text and "at home here" in text and "9,000 tokens/s" in text
    for tenant in ("acme", "globex"):
        assert f"<td>{tenant}</td>" in text
    assert re.search(r"\+[\d.]+ m?s", text), "how much slower"
    assert Worker.objects.get(slug="w2").state == "ready"


def test_a_drain_is_followed_until_nothing_runs(operator: Client, learnt: None, now: datetime) -> None:
    WorkerStatus.objects.filter(worker__slug="w2").update(reading={"running": 4}, ok_at=now, polled_at=now)
    answer = operator.post("/workers/demo/w2/state/drain/", {"reason": "new driver"}, follow=True)
    assert answer.redirect_chain[-1][0] == "/workers/demo/w2/"
    text = answer.content.decode()
    assert "draining" in text and "new driver" in text and "olga" in text and "9 running" in text, "routers say nine"
    WorkerStatus.objects.filter(worker__slug="w2").update(reading={"running": 0}, ok_at=now, polled_at=now)
    idle = RouterState(
        snapshot_version=12, snapshot_age_s=1.0, inflight=0, index_blocks=1, index_bytes=1,
        calibration={"demo/w2": Calibration(5000.0)},
    )  # fmt: skip
    shipment = Shipment(source="router-9", boot="b", seq=2, at=now.timestamp(), router=idle)
    assert not apply_entries([encode_shipment(shipment)], now=now).refused
    fragments.forget()
    polled = operator.get("/fragments/worker/?item=demo/w2").content.decode()
    assert "0 running: it may be stopped." in polled
    assert "0 running: it may be stopped." in operator.get("/fragments/workers/").content.decode()


def test_what_runs_on_a_silent_worker_is_unknown_not_zero(operator: Client, fleet: None, now: datetime) -> None:
    set_worker_state("demo/w2", actor="user:olga", state="drain")
    WorkerStatus.objects.filter(worker__slug="w2").update(ok_at=now - timedelta(minutes=5), reading={"running": 0})
    text = operator.get("/workers/demo/w2/").content.decode()
    assert "how much runs there is unknown" in text and "may be stopped" not in text


def test_a_worker_is_removed_by_typing_its_name(operator: Client, learnt: None) -> None:
    asked = operator.get("/workers/demo/w2/remove/").content.decode()
    assert "Type <code>demo/w2</code>" in asked and "drain it first" in asked
    wrong = operator.post("/workers/demo/w2/remove/", {"typed": "w2"})
    assert wrong.status_code == 422 and "nothing was changed" in wrong.content.decode()
    assert Worker.objects.filter(slug="w2").exists()
    operator.post("/workers/demo/w2/remove/", {"typed": "demo/w2", "reason": "gone"})
    assert not Worker.objects.filter(slug="w2").exists()
    assert AuditEntry.objects.get(action="worker.delete").reason == "gone"


def test_the_last_worker_that_serves_is_said_to_be_so(operator: Client, learnt: None) -> None:
    Worker.objects.exclude(slug="w2").update(state="maintenance")
    text = operator.get("/workers/demo/w2/state/maintenance/").content.decode()
    assert "Without it requests for the models of demo are refused" in text
    assert "the only worker that serves this pool" in operator.get("/workers/removal/").content.decode()


def test_the_ranking_tells_why(operator: Client, learnt: None) -> None:
    text = operator.get("/workers/removal/").content.decode()
    table = text.partition('id="removal"')[2]
    assert table.index("demo/w4") < table.index("demo/w2"), "w2 is home of every hot prefix"
    assert "Value lost" in table and "every hot prefix is also elsewhere" in table
    assert "No worker yet" in operator.get("/workers/removal/?pool=none").content.decode()


@pytest.mark.parametrize(
    "path",
    ["/workers/", "/workers/?sort=-rate&only=ready", "/workers/demo/w2/", "/workers/removal/",
     "/workers/demo/w2/state/drain/", "/workers/demo/w2/remove/"],
)  # fmt: skip
def test_a_page_asks_little(operator: Client, learnt: None, path: str, django_assert_max_num_queries: object) -> None:
    set_worker_state("demo/w3", actor="user:olga", state="drain")
    fragments.forget()
    with django_assert_max_num_queries(QUERIES_MAX):  # type: ignore[operator]
        answer = operator.get(path)
    text = answer.content.decode()
    assert answer.status_code == 200 and "style=" not in text and "None" not in text and "NaN" not in text

"""Each measure: its value where figures are there, unknown with its reason where they are not."""

from __future__ import annotations

import pytest

from controlplane.alerts.measures import MEASURES, Of
from controlplane.alerts.models import AlertRule
from controlplane.alerts.readings import READERS, Reader
from controlplane.deadletters.models import TaskDelivery
from controlplane.fleet.findings import Observation, observe
from controlplane.fleet.models import Finding, Worker, WorkerPool, WorkerStatus
from controlplane.isolation.models import IsolationViolation
from controlplane.snapshots.models import RouterStatus
from controlplane.telemetry.merge import Contribution
from controlplane.telemetry.models import SourceProgress
from controlplane.telemetry.rollups import REQUEST_TABLE, WORKER_TABLE, add
from controlplane.tenants.models import Tenant
from tests.alerts.conftest import seconds, traffic

pytestmark = pytest.mark.django_db


def _read(now, measure: str, **scope: str) -> list[tuple[str, float | None, str]]:
    rule = AlertRule(slug="r", measure=measure, comparison="above", threshold=0, window_s=60, **scope)
    return [(each.subject, each.value, each.reason) for each in Reader(now).readings(rule)]


def _value(now, measure: str, **scope: str) -> float | None:
    [(_, value, reason)] = _read(now, measure, **scope)
    assert (value is None) == bool(reason)
    return value


@pytest.fixture
def workers(db, now) -> list[Worker]:
    """w1 answers and its events are heard, w2 fell silent, w3 was never polled, w4 is in maintenance."""
    pool = WorkerPool.objects.create(slug="llama")
    rows = [
        Worker.objects.create(
            pool=pool, slug=f"w{number}", url=f"http://127.0.0.1:{number}", kv_events_endpoint="tcp://127.0.0.1:1",
            state="maintenance" if number == 4 else "ready",
        )
        for number in (1, 2, 3, 4)
    ]  # fmt: skip
    WorkerStatus.objects.create(worker=rows[0], polled_at=now, ok_at=now - seconds(2))
    WorkerStatus.objects.create(worker=rows[1], polled_at=now, ok_at=now - seconds(90))
    values = {"kv_samples": 1, "event_gaps": 2, "kv_use_sum": 1.6, "kv_use_samples": 2}
    add(WORKER_TABLE, [Contribution(now.timestamp() - 1, ("llama/w1",), values)], now_s=now.timestamp())
    return rows


def test_every_measure_is_read_by_one_function() -> None:
    assert set(READERS) == set(MEASURES)
    assert {measure.of for measure in MEASURES.values()} == set(Of)


def test_shares_of_requests(db, now) -> None:
    for measure in ("hit_share", "goodput_share", "error_share", "ttft_p95_ms"):
        assert _value(now, measure) is None
    traffic(now, share=0.25, ttft_ms=400)
    errors = {"upstream_error": 4, "bad_request": 30}
    dims = ("acme", "acme/a", "llama", "llama/w1", "m", "")
    add(REQUEST_TABLE, [Contribution(now.timestamp() - 1, dims, {"errors": errors})], now_s=now.timestamp())
    assert _value(now, "hit_share") == pytest.approx(0.25)
    assert _value(now, "goodput_share") == 1
    assert _value(now, "error_share") == pytest.approx(4 / 40), "what clients do wrong does not count"
    assert _value(now, "ttft_p95_ms") == pytest.approx(400, rel=0.03)
    assert _value(now, "hit_share", tenant="globex") is None and _value(now, "hit_share", pool="llama") is not None


def test_few_requests_say_nothing(db, now) -> None:
    traffic(now, share=0.9, requests=19)
    for measure in ("hit_share", "goodput_share", "error_share", "ttft_p95_ms"):
        [(_, value, reason)] = _read(now, measure)
        assert value is None and reason.startswith("19 ")


def test_no_violation_is_good_only_where_answers_were_checked(db, now) -> None:
    assert _value(now, "violations") is None
    acknowledged = IsolationViolation.objects.create(
        at=now, request_id="r0", tenant="acme", namespace="acme/a", pool="llama", worker="llama/w1", model="m",
        prompt_tokens=9, cached_tokens=8, bound_tokens=0, acknowledged_at=now - seconds(30),
    )  # fmt: skip
    assert _value(now, "violations") == 0, "somebody looked at the last one just before"
    assert _value(now + seconds(60), "violations") is None
    acknowledged.delete()
    traffic(now, share=0.5)
    assert _value(now, "violations") == 0
    row = IsolationViolation.objects.create(
        at=now, request_id="r1", tenant="acme", namespace="acme/a", pool="llama", worker="llama/w1", model="m",
        prompt_tokens=9, cached_tokens=8, bound_tokens=0,
    )  # fmt: skip
    assert _value(now, "violations") == 1 and _value(now, "violations", tenant="globex") is None
    row.acknowledged_at = now
    row.save()
    assert _value(now, "violations") == 0


def test_workers_silent_unpolled_and_away_on_purpose(workers, now) -> None:
    found = {subject: (value, reason) for subject, value, reason in _read(now, "worker_silent_s")}
    assert found["llama/w1"] == (2, "") and found["llama/w2"] == (90, "")
    assert found["llama/w3"] == (None, "It never answered a poll.") and "llama/w4" not in found
    late = {subject: value for subject, value, _ in _read(now + seconds(60), "worker_silent_s")}
    assert set(late.values()) == {None}, "then the pollers stand still: nobody can tell"
    assert _read(now, "worker_silent_s", pool="other") == []


def test_events_and_kv_use_by_worker(workers, now) -> None:
    gaps = {subject: value for subject, value, _ in _read(now, "event_gaps")}
    assert gaps == {"llama/w1": 2, "llama/w2": None, "llama/w3": None}
    use = {subject: value for subject, value, _ in _read(now, "kv_use")}
    assert use["llama/w1"] == pytest.approx(0.8) and use["llama/w2"] is None


def test_a_budget_holds_on_each_router(db, now) -> None:
    assert _read(now, "budget_use") == []
    Tenant.objects.create(slug="acme", name="Acme", prefill_tokens_per_s=100)
    Tenant.objects.create(slug="free", name="Free")
    assert _value(now, "budget_use") is None
    for name in ("r1", "r2"):
        SourceProgress.objects.create(
            source=name, boot="b", last_seq=1, last_at=now, applied_at=now, router_state={"exact": {}}
        )
    traffic(now, share=0.4, requests=40)
    # 40 × 1,000 × 60 % uncached in 60 s = 400 tokens a second, of 2 × 100.
    assert _read(now, "budget_use") == [("acme", pytest.approx(2.0), "")]


def test_routers_by_their_last_word(db, now) -> None:
    assert _value(now, "router_silent_s") is None
    RouterStatus.objects.create(router_id="r1", boot="b", seen_at=now - seconds(45))
    RouterStatus.objects.create(router_id="gone", boot="b", seen_at=now - seconds(90_000))
    assert _read(now, "router_silent_s") == [("r1", 45, "")]


def test_findings_and_work_given_up_are_counted(db, now) -> None:
    assert (_value(now, "critical_findings"), _value(now, "work_given_up")) == (0, 0)
    observe([Observation("canary_leaks", "llama/w1", "x", Finding.Severity.CRITICAL)], at=now)
    observe([Observation("kv_event_gap", "llama/w1", "x")], at=now)
    TaskDelivery.objects.create(task="canary", subject="1", deliveries=3, first_at=now, last_at=now, dead_at=now)
    TaskDelivery.objects.create(task="canary", subject="2", deliveries=1, first_at=now, last_at=now)
    assert (_value(now, "critical_findings"), _value(now, "work_given_up")) == (1, 1)

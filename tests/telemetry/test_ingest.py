"""Ingestion: each shipment once, in its own time; a bad one costs only itself."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
import redis
from django.db import OperationalError
from django.utils import timezone

from controlplane.fleet.models import Finding, Worker, WorkerPool, WorkerStatus
from controlplane.isolation.models import IsolationViolation
from controlplane.telemetry import ingest as ingestion
from controlplane.telemetry import tasks
from controlplane.telemetry.ingest import apply_entries
from controlplane.telemetry.models import (
    DecisionRecord,
    PrefixHeatRollup,
    RequestRollup,
    SliceRollup,
    SourceProgress,
    WorkerRollup,
)
from controlplane.telemetry.stream import lag_buckets
from controlplane.telemetry.windows import SLICE_RETENTION_S
from router.contract.channels import TELEMETRY_GROUP, TELEMETRY_STREAM
from router.contract.cohorts import KEY_MAX
from router.contract.histogram import total
from router.contract.telemetry import DecisionSample, KvRow, PrefixHeat, RouterState, Violation
from tests.telemetry.shipments import row, shipment

pytestmark = pytest.mark.django_db


def apply(*entries: bytes, now: datetime | None = None):
    return apply_entries(list(entries), now=now or timezone.now())


def requests_stored(width_s: int = 10) -> int:
    return sum(r.requests for r in RequestRollup.objects.filter(width_s=width_s))


def test_rows_reach_all_three_widths():
    at = time.time() - 3
    applied = apply(shipment(0, at, requests=[row(), row(tenant="other")]), shipment(1, at + 1, requests=[row()]))
    assert (applied.applied, applied.refused) == (2, [])
    for width_s in (10, 60, 3600):
        assert requests_stored(width_s) == 6
    hour = RequestRollup.objects.get(width_s=3600, tenant="acme")
    assert (hour.hit_tokens, hour.ttft_hit, hour.saved_prefill_ms) == (80, {"90": 2}, 25.0)


def test_a_shipment_delivered_twice_counts_once():
    entry = shipment(0, time.time(), requests=[row()])
    assert apply(entry, entry).repeated == 1
    assert apply(entry).applied == 0
    assert requests_stored() == 2


def test_another_boot_begins_anew():
    at = time.time()
    apply(shipment(5, at, requests=[row()]))
    apply(shipment(0, at, boot="b2", requests=[row()]))
    assert requests_stored() == 4
    assert SourceProgress.objects.count() == 2


def test_late_data_lands_in_its_own_time():
    now = timezone.now().replace(minute=30, second=5, microsecond=0)
    apply(shipment(0, (now - timedelta(minutes=20)).timestamp(), requests=[row()]), now=now)
    start = RequestRollup.objects.get(width_s=10, tenant="acme").start
    assert start == now - timedelta(minutes=20, seconds=5)


def test_an_idle_router_reports_zero_and_an_absent_one_nothing():
    apply(shipment(0, time.time()))
    assert RequestRollup.objects.filter(width_s=10).get().requests == 0
    assert SourceProgress.objects.get().router_state["snapshot_version"] == 7


@pytest.mark.parametrize(
    "bad",
    [
        b"", b"\xc1", b"\x00" * 10, b"x" * (4 * 1024 * 1024 + 1), msgspec.msgpack.encode({"source": "r"}),
        shipment(1, time.time() + 3600), shipment(1, time.time() - 30 * 86_400), shipment(-1, time.time()),
        shipment(1, time.time(), source=""), shipment(1, time.time(), requests=[row(requests=-5)]),
        shipment(1, time.time(), requests=[row(hit_tokens=2**62)]),
        shipment(1, time.time(), requests=[row(saved_prefill_ms=float("inf"))]),
        shipment(1, time.time(), requests=[row(saved_prefill_ms=float("nan"))]),
        shipment(1, time.time(), requests=[row(tenant="t" * 49)]),
        shipment(1, time.time(), requests=[row(tenant="\0")]),
        shipment(1, time.time(), requests=[row(ttft_hit={100_000: 1})]),
        shipment(1, time.time(), requests=[row(ttft_hit={1: -1})]),
        shipment(1, time.time(), requests=[row()] * 5001),
        shipment(1, time.time(), kv=[KvRow(worker="")], router=None),
    ],
)  # fmt: skip
def test_a_bad_shipment_is_refused_whole_and_the_others_are_applied(bad):
    applied = apply(shipment(0, time.time(), requests=[row()]), bad, shipment(2, time.time(), requests=[row()]))
    assert (applied.applied, len(applied.refused)) == (2, 1)
    assert requests_stored() == 4
    assert Finding.objects.get().kind == "shipment_rejected"


def test_labels_outside_the_closed_sets_become_other():
    apply(shipment(0, time.time(), requests=[row(errors={"no_worker": 1, "x": 2, "y": 3}, spills={"load": 1, "z": 1})]))
    stored = RequestRollup.objects.get(width_s=10, tenant="acme")
    assert stored.errors == {"no_worker": 1, "other": 5}
    assert stored.spills == {"load": 1, "other": 1}


def test_heat_decisions_and_violations_are_kept():
    at = time.time()
    sample = DecisionSample(
        at=at, request_id="q1", tenant="acme", namespace="acme/chat", pool="p", model="m", policy_version=3,
        worker="p/w1", reason="prefix", sentence="p/w1 holds 4 blocks.", ttft_ms=12.0,
    )  # fmt: skip
    violation = Violation(
        at=at, request_id="q1", tenant="acme", namespace="acme/chat", pool="p", worker="p/w1", model="m",
        prompt_tokens=100, cached_tokens=64, bound_tokens=32,
    )  # fmt: skip
    heat = PrefixHeat(prefix="ab" * 8, namespace="acme/chat", pool="p", tokens=512, by_worker={"p/w1": 3, "p/w2": 1})
    apply(shipment(0, at, decisions=[sample], violations=[violation], heat=[heat]))
    apply(shipment(1, at, decisions=[sample], violations=[violation], heat=[heat]))
    assert DecisionRecord.objects.get().detail["sentence"] == "p/w1 holds 4 blocks."
    assert IsolationViolation.objects.get().cached_tokens == 64
    assert Finding.objects.get(kind="isolation_violation").severity == "critical"
    stored = PrefixHeatRollup.objects.get(width_s=10)
    assert (stored.requests, stored.tokens, stored.by_worker) == (8, 512, {"p/w1": 6, "p/w2": 2})


def test_kv_rows_reach_rollup_status_and_findings():
    worker = Worker.objects.create(pool=WorkerPool.objects.create(slug="p"), slug="w1", url="http://127.0.0.1:1")
    at = time.time()
    apply(
        shipment(0, at, source="kv-events", kv=[KvRow("p/w1", stored_blocks=5, removed_blocks=2, resident_blocks=40)]),
        shipment(1, at + 1, source="kv-events", kv=[KvRow("p/w1", state="degraded", gaps=1), KvRow("p/gone")]),
    )
    stored = WorkerRollup.objects.get(width_s=3600, worker="p/w1")
    assert (stored.stored_blocks, stored.removed_blocks, stored.kv_samples, stored.event_gaps) == (5, 2, 2, 1)
    assert stored.resident_blocks is None
    assert WorkerStatus.objects.get(worker=worker).kv["state"] == "degraded"
    kinds = Finding.objects.filter(resolved_at=None).values_list("kind", flat=True)
    assert set(kinds) == {"kv_events_degraded", "kv_event_gap"}
    apply(shipment(2, at + 2, source="kv-events", kv=[KvRow("p/w1", resident_blocks=41)]))
    assert not Finding.objects.filter(kind="kv_events_degraded", resolved_at=None).exists()
    assert WorkerStatus.objects.get(worker=worker).kv["resident_blocks"] == 41


def test_silence_is_unknown_churn_not_zero():
    apply(shipment(0, time.time(), source="kv-events", kv=[KvRow("p/w1", state="silent")]))
    stored = WorkerRollup.objects.get(width_s=10)
    assert (stored.kv_samples, stored.resident_blocks) == (0, None)


# the stream


@pytest.fixture
def stream(valkey_url) -> redis.Redis:
    return redis.Redis.from_url(valkey_url)


def send(stream: redis.Redis, *entries: bytes) -> None:
    for entry in entries:
        stream.xadd(TELEMETRY_STREAM, {"m": entry})


def pending(stream: redis.Redis) -> int:
    return stream.xpending(TELEMETRY_STREAM, TELEMETRY_GROUP)["pending"]


def test_what_was_sent_before_the_first_ingester_counts(stream):
    send(stream, *(shipment(seq, time.time(), requests=[row()]) for seq in range(3)))
    assert tasks.ingest() == 3
    assert tasks.ingest() == 0
    assert pending(stream) == 0
    assert total(lag_buckets(stream)) == 3


def test_a_backlog_longer_than_a_batch_is_applied_in_one_tick(stream):
    send(stream, *(shipment(seq, time.time(), requests=[row()]) for seq in range(450)))
    assert tasks.ingest() == 450
    assert requests_stored(3600) == 900


def test_a_crash_between_commit_and_acknowledgement_counts_once(stream, monkeypatch):
    send(stream, shipment(0, time.time(), requests=[row()]))

    def killed(*args: object) -> None:
        raise SystemExit

    monkeypatch.setattr(tasks, "acknowledge", killed)
    with pytest.raises(SystemExit):
        tasks.ingest()
    monkeypatch.undo()
    assert (requests_stored(), pending(stream)) == (2, 1)
    send(stream, shipment(1, time.time(), requests=[row()]))
    assert tasks.ingest() == 1
    assert (requests_stored(), pending(stream)) == (4, 0)


def test_a_database_that_is_away_loses_nothing(stream, monkeypatch):
    send(stream, shipment(0, time.time(), requests=[row()]))

    def away(*args: object, **kwargs: object) -> None:
        raise OperationalError("database is locked")

    monkeypatch.setattr(ingestion, "_add_rows", away)
    with pytest.raises(OperationalError):
        tasks.ingest()
    monkeypatch.undo()
    assert SourceProgress.objects.count() == 0
    assert tasks.ingest() == 1
    assert requests_stored() == 2


def test_bad_entries_do_not_stay_in_the_stream(stream):
    stream.xadd(TELEMETRY_STREAM, {"other": b"x"})
    send(stream, b"garbage", shipment(0, time.time(), requests=[row()]))
    assert tasks.ingest() == 1
    assert pending(stream) == 0


def test_only_one_ingester_runs_at_a_time(stream):
    send(stream, shipment(0, time.time(), requests=[row()]))
    stream.set("tidemark:lock:ingest", "another")
    assert tasks.ingest() == 0
    stream.delete("tidemark:lock:ingest")
    assert tasks.ingest() == 1


def test_without_valkey_a_tick_ends_quietly(settings, free_port):
    settings.REDIS_URL = f"redis://127.0.0.1:{free_port}/0"
    assert tasks.ingest() == 0


# retention


def test_rows_past_their_retention_go_and_the_others_stay():
    now = timezone.now()
    for width_s, kept in ((10, timedelta(hours=6)), (60, timedelta(days=7)), (3600, timedelta(days=400))):
        for start in (now - kept - timedelta(hours=2), now - kept + timedelta(hours=2)):
            RequestRollup.objects.create(width_s=width_s, start=start)
    tasks.expire_rollups()
    assert RequestRollup.objects.count() == 3


def test_decisions_are_bounded_by_number_and_age(monkeypatch):
    monkeypatch.setattr(tasks, "DECISIONS_KEPT_MAX", 3)
    now = datetime.now(UTC)
    for index in range(6):
        DecisionRecord.objects.create(
            request_id=f"q{index}", at=now - timedelta(minutes=index), tenant="t", namespace="t/n", pool="p",
            outcome="ok", reason="home", detail={},
        )  # fmt: skip
    tasks.expire_rollups()
    assert set(DecisionRecord.objects.values_list("request_id", flat=True)) == {"q0", "q1", "q2"}


def test_a_router_state_outlives_a_shipment_without_one():
    apply(shipment(0, time.time(), router=RouterState(4, 1.0, 0, 0, 0)))
    apply(shipment(1, time.time(), router=None))
    assert SourceProgress.objects.get().router_state["snapshot_version"] == 4


def reach(**values: object) -> object:
    given = {
        "repeated_tokens": 90, "best_hit_tokens": 80, "expected_hit_tokens": 55, "unjudged_tokens": 4,
        "routing_loss": {"load": 20, "whatever": 5}, "hit_size": {60: 2}, "cohorts": {77: 2},
    }  # fmt: skip
    return row(**(given | values))


def test_reach_is_kept_by_router_by_worker_and_by_namespace():
    at = time.time() - 3
    rows = [reach(template="t@1"), reach(worker="p/w2", template="t@1"), reach(tenant="other", namespace="other/x")]
    apply(shipment(0, at, requests=rows), shipment(0, at, source="r2", requests=[reach(worker="")]))
    for width_s in (60, 3600, 86_400):
        found: dict[str, dict[str, int]] = {}
        for kept in SliceRollup.objects.filter(width_s=width_s).exclude(pool=""):
            names = found.setdefault(kept.slice, {})
            names[kept.name] = names.get(kept.name, 0) + kept.repeated_tokens
        assert found == {
            "router": {"r1": 270, "r2": 90},
            "worker": {"p/w1": 180, "p/w2": 90},
            "namespace": {"acme/chat": 270, "other/x": 90},
        }
    hour = SliceRollup.objects.get(width_s=3600, slice="namespace", template="t@1")
    assert (hour.requests, hour.prompt_tokens, hour.best_hit_tokens, hour.expected_hit_tokens) == (4, 200, 160, 110)
    assert (hour.hit_tokens, hour.unjudged_tokens, hour.saved_prefill_ms) == (80, 8, 25.0)
    assert (hour.routing_loss, hour.hit_size, hour.cohorts) == ({"load": 40, "other": 10}, {"60": 4}, {"77": 4})


def test_prompt_tokens_whose_hits_are_not_told_are_kept_apart():
    apply(shipment(0, time.time(), requests=[row(prompt_tokens=160)]))
    kept = SliceRollup.objects.get(width_s=60, slice="worker")
    assert (kept.prompt_tokens, kept.unknown_prompt_tokens) == (100, 60)


def test_an_idle_router_has_a_slice_and_an_absent_one_has_not():
    apply(shipment(0, time.time()))
    kept = SliceRollup.objects.get(width_s=60)
    assert (kept.slice, kept.name, kept.requests) == ("router", "r1", 0)


@pytest.mark.parametrize("bad", [{"cohorts": {-1: 1}}, {"cohorts": {KEY_MAX + 1: 1}}, {"hit_size": {10_000: 1}}])
def test_reach_outside_its_sets_is_refused(bad: dict[str, object]):
    applied = apply(shipment(0, time.time(), requests=[reach(**bad)]))
    assert len(applied.refused) == 1
    assert not SliceRollup.objects.exists()


def test_slices_expire_by_their_own_retention():
    now = timezone.now()
    for width_s, kept_s in SLICE_RETENTION_S.items():
        for age_s in (kept_s - 90, kept_s + 90):
            SliceRollup.objects.create(
                width_s=width_s, start=now - timedelta(seconds=age_s), slice="worker", name=f"p/w{width_s}-{age_s}"
            )
    tasks.expire_rollups()
    assert SliceRollup.objects.count() == len(SLICE_RETENTION_S)

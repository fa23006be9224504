"""What the operator reads: figures from rollups, None for unknown, gaps kept as gaps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from controlplane.fleet.deltas import Increases
from controlplane.fleet.metrics_page import Reading
from controlplane.fleet.models import Finding, Worker, WorkerPool, WorkerStatus
from controlplane.fleet.poll import PollOutcome, Target
from controlplane.isolation.models import IsolationViolation
from controlplane.isolation.selectors import isolation_coverage, needs_attention, violations
from controlplane.telemetry.figures import HEAT_MEASURES
from controlplane.telemetry.ingest import apply_entries
from controlplane.telemetry.merge import Contribution
from controlplane.telemetry.rollups import WORKER_TABLE, add
from controlplane.telemetry.selectors import (
    churn_series,
    fleet_tiles,
    freshness,
    heat_map,
    hit_tokens_series,
    hot_prefixes,
    last_minutes,
    prompt_by_source_series,
    routers,
    spill_series,
    ttft_series,
)
from controlplane.telemetry.windows import Scope
from controlplane.telemetry.worker_rollups import contribution_of
from router.contract.telemetry import KvRow, PrefixHeat
from tests.telemetry.shipments import row, shipment

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 5, 17, 13, 30, tzinfo=UTC)


def ship(seq: int, seconds_ago: float, **parts: object) -> None:
    apply_entries([shipment(seq, NOW.timestamp() - seconds_ago, **parts)], now=NOW)


def scope(minutes: float = 5, **dims: str) -> Scope:
    return Scope(from_=NOW - timedelta(minutes=minutes), to=NOW, **dims)


def test_the_tiles_say_what_was_delivered_and_what_it_saved():
    ship(0, 60, requests=[row(requests=30, slo_met=27, slo_known=30), row(worker="p/w2", errors={"no_worker": 3})])
    tiles = fleet_tiles(scope(), now=NOW)
    assert tiles.hit_share.value == pytest.approx(80 / 200)
    assert tiles.predicted_share.value == pytest.approx(100 / 200)
    assert tiles.prefill_tokens_saved_per_s.value == pytest.approx(80 / 60), "since the first report, 60 s ago"
    assert tiles.gpu_seconds_saved_per_h.value == pytest.approx(0.025 * 60)
    assert tiles.goodput_share.value == pytest.approx(28 / 32)
    assert tiles.requests_per_s.value == pytest.approx(32 / 60)
    assert tiles.errors_per_s.value == pytest.approx(3 / 60)
    assert tiles.ttft_hit_p50_ms.value == pytest.approx(1.05**89.5)
    assert tiles.ttft_miss_p95_ms.value == pytest.approx(1.05**129.5)
    assert tiles.hit_share.previous is None
    assert tiles.data_age_s == pytest.approx(60)


def test_the_period_before_is_compared():
    ship(0, 400, requests=[row(hit_tokens=10)])
    ship(1, 100, requests=[row(hit_tokens=60)])
    share = fleet_tiles(scope(), now=NOW).hit_share
    assert (share.value, share.previous) == (0.6, 0.1)


def test_without_any_report_everything_is_unknown():
    tiles = fleet_tiles(scope(), now=NOW)
    for name in (
        "hit_share",
        "requests_per_s",
        "errors_per_s",
        "violations",
        "ttft_hit_p50_ms",
        "waiting",
        "kv_use_max",
    ):
        assert getattr(tiles, name).value is None, name
    assert tiles.data_age_s is None and tiles.poll_age_s is None


def test_unknown_cached_tokens_are_left_out_of_the_share_not_counted_as_misses():
    unknown = row(hit_known=0, hit_tokens=0, hit_prompt_tokens=0, predicted_hit_tokens=0, ttft_hit={}, ttft_miss={})
    ship(0, 60, requests=[row(), unknown])
    tiles = fleet_tiles(scope(), now=NOW)
    assert tiles.hit_share.value == pytest.approx(0.4)
    assert tiles.hit_known_share.value == pytest.approx(0.5)
    series = hit_tokens_series(scope(), now=NOW)
    assert [value for value in series.unknown_prompt_share if value is not None] == [pytest.approx(0.5)]


def test_a_bucket_without_reports_is_a_gap_and_an_idle_one_is_zero():
    ship(0, 100, requests=[row()])
    ship(1, 50)
    series = hit_tokens_series(scope(), now=NOW)
    values = dict(zip(series.buckets, series.prompt_tokens, strict=True))
    assert values[NOW - timedelta(seconds=100)] == 100
    assert values[NOW - timedelta(seconds=50)] == 0
    assert values[NOW - timedelta(seconds=80)] is None


def test_a_scoped_series_sees_only_its_own_and_knows_idle_from_gap():
    """Alice's tenant sees Alice's tokens; Charlie's sees none of them."""
    ship(0, 100, requests=[row(tenant="alice", namespace="alice/a"), row(tenant="charlie", namespace="charlie/c")])
    ship(1, 50, requests=[row(tenant="charlie", namespace="charlie/c")])
    series = hit_tokens_series(scope(tenant="alice"), now=NOW)
    values = dict(zip(series.buckets, series.prompt_tokens, strict=True))
    assert values[NOW - timedelta(seconds=100)] == 100
    assert values[NOW - timedelta(seconds=50)] == 0
    assert values[NOW - timedelta(seconds=80)] is None
    assert fleet_tiles(scope(namespace="alice/none"), now=NOW).requests_per_s.value == 0
    assert fleet_tiles(scope(tenant="alice"), now=NOW).requests_per_s.value == pytest.approx(2 / 120)


def test_ttft_has_a_delta_only_where_both_sides_are_known():
    ship(0, 100, requests=[row()])
    ship(1, 50, requests=[row(ttft_hit={})])
    series = ttft_series(scope(), now=NOW)
    known = [index for index, value in enumerate(series.delta_p50_ms) if value is not None]
    assert [series.buckets[index] for index in known] == [NOW - timedelta(seconds=100)]
    assert series.delta_p50_ms[known[0]] == pytest.approx(1.05**129.5 - 1.05**89.5)
    assert sum(value for value in series.miss_count if value) == 2


def test_a_day_is_read_from_hours_and_agrees_with_its_minutes():
    for index in range(20):
        ship(index, 60 * 55 * (20 - index), requests=[row()])
    day = hit_tokens_series(scope(minutes=24 * 60), now=NOW)
    assert day.step_s == 3600
    assert sum(value for value in day.prompt_tokens if value) == 2000
    rate = fleet_tiles(scope(minutes=24 * 60), now=NOW).requests_per_s.value
    assert rate == pytest.approx(40 / (20 * 55 * 60), rel=0.05), "the fleet has reported for 20 × 55 minutes"


def poll_row(seconds_ago: float, worker: str = "p/w1", **values: object) -> None:
    contribution = Contribution(NOW.timestamp() - seconds_ago, (worker,), values)
    add(WORKER_TABLE, [contribution], now_s=NOW.timestamp())


def test_the_heat_map_has_a_row_for_each_worker_and_means_of_samples():
    Worker.objects.create(pool=WorkerPool.objects.create(slug="p"), slug="w9", url="http://127.0.0.1:1")
    poll_row(100, kv_use_sum=0.5, kv_use_samples=2, running_sum=6.0, running_samples=3, removed_blocks=5, kv_samples=10,
             prefix_hit_tokens=30, prefix_query_tokens=120)  # fmt: skip
    ship(0, 100, requests=[row(requests=20)])
    expected = {"kv_use": 0.25, "running": 2, "evictions": 30, "hit_share": 0.25, "requests": 2}
    for measure in HEAT_MEASURES:
        drawn = heat_map(scope(), measure, now=NOW)
        assert drawn.workers == ["p/w1", "p/w9"]
        assert [value for value in drawn.values[0] if value is not None] == [pytest.approx(expected[measure])], measure
        assert set(drawn.values[1]) == {None}
    with pytest.raises(ValueError, match="unknown measure"):
        heat_map(scope(), "colour", now=NOW)


def test_churn_counts_each_worker_at_its_own_rate():
    poll_row(100, stored_blocks=20, removed_blocks=10, restored_blocks=1, kv_samples=10, event_gaps=1)
    poll_row(100, "p/w2", stored_blocks=10, removed_blocks=0, restored_blocks=0, kv_samples=5, event_gaps=0)
    poll_row(50, "p/w1", polls_ok=1)
    series = churn_series(scope(), now=NOW)
    index = series.buckets.index(NOW - timedelta(seconds=100))
    assert (series.stored_per_min[index], series.removed_per_min[index]) == (240, 60)
    assert (series.net_per_min[index], series.restored_per_min[index], series.gaps[index]) == (180, 6, 1)
    assert series.stored_per_min[series.buckets.index(NOW - timedelta(seconds=50))] is None


def test_prompt_tokens_are_told_by_source_where_polls_had_predecessors():
    poll_row(100, delta_samples=1, prompt_tokens_by_source={"local_compute": 70, "local_cache_hit": 30})
    poll_row(50, polls_ok=1)
    series = prompt_by_source_series(scope(), now=NOW)
    assert {name: [v for v in values if v is not None] for name, values in series.by_source.items()} == {
        "local_compute": [70], "local_cache_hit": [30],
    }  # fmt: skip


def test_what_connectors_loaded_is_told_in_bytes_and_ms():
    reading = Reading()
    told = {"offload_load_bytes": 3000.0, "offload_load_s": 0.5, "nixl_bytes": 1000.0, "nixl_s": 0.25}
    target = Target(pk=1, worker_id="p/w1", url="http://127.0.0.1:1")
    for seconds_ago, values in ((100, told), (50, {"prompt_tokens": 10.0})):
        outcome = PollOutcome(
            target, NOW.timestamp() - seconds_ago, reading=reading, increases=Increases(known=True, values=values)
        )
        add(WORKER_TABLE, [contribution_of(outcome)], now_s=NOW.timestamp())
    series = prompt_by_source_series(scope(), now=NOW)
    assert [value for value in series.loaded_bytes if value is not None] == [4000, 0]
    assert [value for value in series.load_ms if value is not None] == [750, 0]


def test_spills_are_told_by_reason():
    ship(0, 100, requests=[row(spills={"load": 2, "watermark": 1})])
    series = spill_series(scope(), now=NOW)
    assert {name: sum(v for v in values if v) for name, values in series.by_reason.items()} == {
        "load": 2, "watermark": 1,
    }  # fmt: skip


def test_hot_prefixes_name_their_busiest_worker_and_stay_inside_the_tenant():
    heat = [
        PrefixHeat(prefix="a" * 16, namespace="acme/chat", pool="p", tokens=512, by_worker={"p/w1": 9, "p/w2": 1}),
        PrefixHeat(prefix="b" * 16, namespace="acme2/chat", pool="p", tokens=64, by_worker={"p/w1": 2}),
    ]
    ship(0, 60, heat=heat)
    found = hot_prefixes(scope(), now=NOW)
    assert [(item.prefix[0], item.requests, item.top_share) for item in found] == [("a", 10, 0.9), ("b", 2, 1.0)]
    assert [item.namespace for item in hot_prefixes(scope(tenant="acme"), now=NOW)] == ["acme/chat"]


def test_freshness_knows_every_source():
    ship(0, 2)
    ship(0, 30, source="kv-events", kv=[KvRow("p/w1")])
    found = {item.source: (item.kind, item.stale) for item in freshness(now=NOW)}
    assert found == {"r1": ("router", False), "kv-events": ("kv-events", True), "polls": ("polls", True)}
    assert [router.snapshot_version for router in routers(now=NOW)] == [7]


def test_isolation_coverage_is_unknown_without_traffic_reports():
    assert isolation_coverage(scope(), now=NOW).checked is None
    ship(0, 60, requests=[row(isolation_checked=5, isolation_unknown=2, isolation_violations=1)])
    coverage = isolation_coverage(scope(), now=NOW)
    assert (coverage.checked, coverage.unknown, coverage.violations) == (5, 2, 1)


def test_violations_are_scoped():
    for index, tenant in enumerate(("alice", "charlie")):
        IsolationViolation.objects.create(
            at=NOW - timedelta(minutes=1), request_id=f"q{index}", tenant=tenant, namespace=f"{tenant}/n", pool="p",
            worker="p/w1", model="m", prompt_tokens=10, cached_tokens=8, bound_tokens=0,
        )  # fmt: skip
    assert [item.tenant for item in violations(scope(tenant="alice"))] == ["alice"]
    assert len(violations(scope())) == 2


def test_what_needs_attention_comes_critical_first():
    worker = Worker.objects.create(pool=WorkerPool.objects.create(slug="p"), slug="w1", url="http://127.0.0.1:1")
    WorkerStatus.objects.create(worker=worker, polled_at=NOW, ok_at=NOW - timedelta(seconds=60))
    for kind, subject, severity in (("kv_event_gap", "p/w1", "info"), ("isolation_violation", "a/b", "critical")):
        Finding.objects.create(
            kind=kind, subject=subject, severity=severity, message="m", first_seen=NOW, last_seen=NOW
        )
    found = needs_attention(now=NOW)
    assert [(item.kind, item.target_kind) for item in found] == [
        ("isolation_violation", "namespace"), ("worker_stale", "worker"), ("source_stale", "source"),
        ("kv_event_gap", "worker"),
    ]  # fmt: skip
    assert "60 s ago" in found[1].sentence


@pytest.mark.parametrize(
    ("ask", "queries"),
    [
        (fleet_tiles, 5), (hit_tokens_series, 2), (ttft_series, 2), (spill_series, 2), (churn_series, 1),
        (prompt_by_source_series, 1), (hot_prefixes, 1), (lambda s, now: heat_map(s, "kv_use", now=now), 2),
        (lambda s, now: heat_map(s, "requests", now=now), 3), (isolation_coverage, 2),
    ],
)  # fmt: skip
def test_each_question_costs_few_queries(django_assert_max_num_queries, ask, queries):
    ship(0, 60, requests=[row()])
    allowed = queries + (2 if ask is fleet_tiles else 0)
    with django_assert_max_num_queries(allowed):
        ask(scope(tenant="acme"), now=NOW)


def test_last_minutes_ends_now():
    asked = last_minutes(15, now=NOW, tenant="acme")
    assert (asked.to, asked.span_s, asked.tenant) == (NOW, 900, "acme")

"""Eviction churn: who evicted whom, how long blocks live, what comes back, and what that costs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from controlplane.fleet.models import Worker, WorkerPool
from controlplane.fleet.selectors import workers_table
from controlplane.telemetry import evictions
from controlplane.telemetry.eviction_figures import DURATION_BINS_S, Price, binned
from controlplane.telemetry.ingest import apply_entries
from controlplane.telemetry.merge import Contribution
from controlplane.telemetry.models import EvictionRollup
from controlplane.telemetry.rollups import WORKER_TABLE, add
from controlplane.telemetry.windows import Scope
from router.contract.histogram import bucket_of
from router.contract.snapshot import Watermark
from router.contract.telemetry import Calibration, KvRow, RouterState, Shipment, encode_shipment

NOW = datetime(2030, 5, 1, 12, 0, tzinfo=UTC)
SCOPE = Scope(NOW - timedelta(minutes=15), NOW)
PRICES = {"llama": Price(16, 1000.0), "small": Price(32, None)}


def told(*rows: KvRow, seq: int = 0, at: datetime = NOW - timedelta(minutes=5)) -> list[str]:
    shipment = Shipment("kv-events", "b", seq, at.timestamp(), kv=list(rows))
    return apply_entries([encode_shipment(shipment)], now=NOW).refused


def row(worker: str = "llama/w1", **fields: object) -> KvRow:
    return KvRow(worker=worker, **fields)  # type: ignore[arg-type]


@pytest.mark.django_db
def test_pairs_and_returns_add_up_over_workers_and_seconds_in_every_width() -> None:
    assert not told(
        row(evicted={"a/x>b/y": 3, ">b/y": 1}, restored_of={"b/y": 2}),
        row("llama/w2", evicted={"a/x>b/y": 4}, lifetime={100: 2}),
    )
    assert not told(row(evicted={"b/y>b/y": 5}, restore_gap={50: 1}), seq=1)
    found = evictions.evictions(SCOPE, now=NOW, prices=PRICES)
    assert found.evicted == {("a/x", "b/y"): 7, ("", "b/y"): 1, ("b/y", "b/y"): 5}
    assert (found.restored_of, found.lifetime, found.restore_gap) == ({"b/y": 2}, {100: 2}, {50: 1})
    assert (found.heard_s, found.evicted_blocks) == (3, 13)
    assert sorted(EvictionRollup.objects.values_list("width_s", "pool", "seconds")) == [
        (10, "llama", 3), (60, "llama", 3), (3600, "llama", 3),
    ]  # fmt: skip


@pytest.mark.django_db
def test_value_lost_is_what_came_back_at_its_pools_price() -> None:
    told(
        row(evicted={"a/x>b/y": 10, "b/y>b/y": 6}, restored_of={"b/y": 125}),
        row("small/w1", evicted={"b/y>a/x": 4}, restored_of={"a/x": 3}),
    )
    first, second = evictions.evictions(SCOPE, now=NOW, prices=PRICES).losses
    assert (first.namespace, first.evicted_blocks, first.by_others, first.restored_blocks) == ("b/y", 16, 10, 125)
    assert (first.lost_tokens, first.lost_gpu_s) == (2000.0, 2.0)
    assert (second.namespace, second.lost_tokens, second.lost_gpu_s) == ("a/x", 96.0, None)
    only = Scope(SCOPE.from_, SCOPE.to, pool="small")
    assert [loss.namespace for loss in evictions.evictions(only, now=NOW, prices=PRICES).losses] == ["a/x"]


@pytest.mark.django_db
def test_what_was_not_heard_is_no_second_and_nothing_is_unknown() -> None:
    told(row(state="down"), row("llama/w2", state="silent"))
    found = evictions.evictions(SCOPE, now=NOW, prices=PRICES)
    assert (found.heard_s, found.lifetime_ms, found.restore_gap_ms, list(found.losses)) == (0, None, None, [])


@pytest.mark.django_db
@pytest.mark.parametrize(
    "fields",
    [{"evicted": {"x" * 300: 1}}, {"restored_of": {"n": -1}}, {"lifetime": {9999: 1}}, {"evicted": {"a\0": 1}}],
)
def test_a_row_out_of_bounds_is_refused(fields: dict[str, object]) -> None:
    assert told(row(**fields))


def polled(worker: str, use: float, minute: int) -> None:
    values = {"polls_ok": 1, "kv_use_sum": use * 2, "kv_use_max": use + 0.01, "kv_use_samples": 2}
    at = (NOW - timedelta(minutes=minute)).timestamp()
    add(WORKER_TABLE, [Contribution(at, (worker,), values)], now_s=NOW.timestamp())


@pytest.mark.django_db
def test_each_worker_has_its_churn_and_its_time_at_its_pools_watermarks() -> None:
    for minute, use in ((2, 0.9), (4, 0.85), (6, 0.7), (8, 0.2)):
        polled("llama/w1", use, minute)
        polled("small/w1", use, minute)
    told(row(stored_blocks=50, removed_blocks=40, restored_blocks=10, gaps=1))
    marks = {"llama": Watermark(0.65, 0.85), "small": Watermark(0.1, 0.95)}
    rows = evictions.worker_churn(SCOPE, now=NOW, prices=PRICES, marks=marks, workers=[])
    busy, quiet = rows
    assert (busy.worker, busy.stored, busy.removed, busy.restored, busy.gaps) == ("llama/w1", 50, 40, 10, 1)
    assert (busy.restored_share, busy.lost_gpu_s) == (0.25, 0.16)
    assert (busy.high_share, busy.between_share) == (0.5, 0.25)
    assert (busy.kv_use_mean, busy.kv_use_max) == (pytest.approx(0.6625), pytest.approx(0.91))
    assert (quiet.worker, quiet.high_share, quiet.between_share) == ("small/w1", 0.0, 1.0)
    assert (quiet.stored, quiet.removed, quiet.restored_share, quiet.lost_gpu_s) == (None, None, None, None)


@pytest.mark.django_db
def test_kv_use_is_drawn_of_the_named_workers_alone() -> None:
    polled("llama/w1", 0.5, 3)
    polled("llama/w2", 0.9, 3)
    lines = evictions.kv_use_lines(SCOPE, now=NOW, workers=("llama/w1", "llama/w9"))
    assert [value for value in lines.by_worker["llama/w1"] if value is not None] == [0.5]
    assert not any(lines.by_worker["llama/w9"])


@pytest.mark.django_db
def test_a_block_costs_what_routers_have_learnt_else_what_the_pool_states() -> None:
    for slug in ("llama", "small"):
        pool = WorkerPool.objects.create(slug=slug, prefill_tokens_per_s=500.0)
        Worker.objects.create(pool=pool, slug="w1", url=f"http://{slug}", facts={"block_size": 16})
    state = RouterState(1, 0.0, 0, 0, 0, calibration={"llama/w1": Calibration(tokens_per_s=2000.0, samples=9)})
    shipment = Shipment("r1", "b", 0, NOW.timestamp() - 1, router=state)
    assert not apply_entries([encode_shipment(shipment)], now=NOW).refused
    found = evictions.prices(now=NOW, workers=workers_table(now=NOW))
    assert (found["llama"].gpu_s(250), found["small"].gpu_s(250)) == (2.0, 8.0)
    Worker.objects.update(facts={})
    unasked = evictions.prices(now=NOW, workers=workers_table(now=NOW))["llama"]
    assert (unasked.tokens(1), unasked.gpu_s(1)) == (None, None)


def test_durations_fall_into_the_bins_that_are_drawn() -> None:
    counts = binned({bucket_of(500.0): 1, bucket_of(20_000.0): 2, bucket_of(3e7): 4})
    assert (counts[0], counts[3], counts[-1], sum(counts), len(counts)) == (1, 2, 4, 7, len(DURATION_BINS_S) + 1)

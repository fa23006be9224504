"""Hot spots: which prefixes, which workers, how unequal, and what spreading would do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.telemetry import hotspots
from controlplane.telemetry.hotspot_figures import OTHERS, concentration
from controlplane.telemetry.ingest import apply_entries
from controlplane.telemetry.merge import Contribution
from controlplane.telemetry.placement_effects import Ruled, effects
from controlplane.telemetry.rollups import WORKER_TABLE, add
from controlplane.telemetry.spread import GIB, Known, Room, spreads
from controlplane.telemetry.windows import Scope
from router.contract.telemetry import Candidate, DecisionSample, PrefixHeat, Shipment, encode_shipment

NOW = datetime(2030, 5, 1, 12, 0, tzinfo=UTC)
SCOPE = Scope(NOW - timedelta(minutes=15), NOW)
A, B = "a" * 16, "b" * 16


def heat(prefix: str, by_worker: dict[str, int], namespace: str = "acme/support", **more: object) -> PrefixHeat:
    return PrefixHeat(prefix=prefix, namespace=namespace, pool="llama", tokens=512, by_worker=by_worker, **more)  # type: ignore[arg-type]


def told(*rows: PrefixHeat, at: datetime = NOW - timedelta(minutes=5), seq: int = 0, **more: object) -> None:
    shipment = Shipment("r", "b", seq, at.timestamp(), heat=list(rows), **more)  # type: ignore[arg-type]
    assert not apply_entries([encode_shipment(shipment)], now=NOW).refused


@pytest.mark.django_db
def test_a_prefix_is_added_up_with_its_shares_holders_and_means() -> None:
    told(heat(A, {"llama/w1": 6, "llama/w2": 2}, head_tokens=4096, prompt_tokens=800, hit_tokens=600, queue_ms=80.0,
              spills=2, load=0.3, homes=2, holders=["llama/w1"]))  # fmt: skip
    told(heat(A, {"llama/w1": 2}, head_tokens=2048, prompt_tokens=200, hit_tokens=150, queue_ms=20.0, placed=2,
              load=0.2,
              homes=1, holders=["llama/w1", "llama/w3"]), at=NOW - timedelta(minutes=4), seq=1)  # fmt: skip
    (spot,) = hotspots.hot_spots(SCOPE, now=NOW)
    assert (spot.requests, spot.tokens, spot.load, spot.homes) == (10, 4096, 0.3, 2)
    assert [(one.worker, one.requests, one.holds) for one in spot.workers] == [
        ("llama/w1", 8, True), ("llama/w2", 2, False), ("llama/w3", 0, True),
    ]  # fmt: skip
    assert (spot.top_share, spot.serving, spot.holders) == (0.8, 2, ["llama/w1", "llama/w3"])
    assert (spot.hit_share, spot.queue_ms, spot.spill_share, spot.placed_share) == (0.75, 10.0, 0.2, 0.2)
    assert spot.effective_workers == pytest.approx(1 / 0.68)


@pytest.mark.django_db
def test_a_router_that_tells_less_leaves_the_rest_unknown() -> None:
    told(heat(A, {"llama/w1": 3}))
    (spot,) = hotspots.hot_spots(SCOPE, now=NOW)
    assert (spot.tokens, spot.hit_share, spot.queue_ms, spot.spill_share, spot.load) == (512, None, None, None, None)


@pytest.mark.django_db
def test_a_tenant_sees_its_own_prefixes_alone() -> None:
    told(heat(A, {"llama/w1": 3}), heat(B, {"llama/w2": 9}, "globex/agents"))
    own = Scope(SCOPE.from_, SCOPE.to, tenant="acme")
    assert [spot.prefix for spot in hotspots.hot_spots(SCOPE, now=NOW)] == [B, A]
    assert [spot.prefix for spot in hotspots.hot_spots(own, now=NOW)] == [A]
    assert hotspots.spots_of(own, "llama", B, now=NOW) == []
    assert hotspots.prefix_series(own, now=NOW, pool="llama", prefix=B).by_worker == {}
    assert [key for key, _ in hotspots.prefix_requests(own, now=NOW)] == [("acme/support", "llama", A)]


@pytest.mark.django_db
def test_one_prefix_of_a_shared_domain_has_several_namespaces() -> None:
    told(heat(A, {"llama/w1": 3}), heat(A, {"llama/w1": 4}, "acme/search"))
    assert [(spot.namespace, spot.requests) for spot in hotspots.spots_of(SCOPE, "llama", A, now=NOW)] == [
        ("acme/search", 4), ("acme/support", 3),
    ]  # fmt: skip


@pytest.mark.django_db
def test_its_series_names_the_busiest_workers_and_adds_up_the_others() -> None:
    told(heat(A, {f"llama/w{number}": 10 + number for number in range(9)}))
    series = hotspots.prefix_series(SCOPE, now=NOW, pool="llama", prefix=A)
    assert list(series.by_worker) == [*(f"llama/w{number}" for number in range(3, 9)), OTHERS]
    assert sum(value or 0 for values in series.by_worker.values() for value in values) * series.step_s == pytest.approx(
        sum(10 + number for number in range(9))
    )


def polled(worker: str, queried: int, hit: int, at: datetime = NOW - timedelta(minutes=5)) -> None:
    values = {"polls_ok": 1, "prefix_query_tokens": queried, "prefix_hit_tokens": hit}
    add(WORKER_TABLE, [Contribution(at.timestamp(), (worker,), values)], now_s=NOW.timestamp())


@pytest.mark.django_db
def test_imbalance_is_the_busiest_worker_over_the_mean_of_its_pool() -> None:
    for worker, computed in (("llama/w1", 600), ("llama/w2", 0), ("llama/w3", 300), ("small/w1", 50), ("small/w2", 50)):
        polled(worker, 1000 + computed, 1000)
    series = hotspots.imbalance(SCOPE, now=NOW)
    assert [value for value in series.ratio if value is not None] == [2.0]
    assert sum(value or 0 for value in series.tokens_per_s) * series.step_s == 1000
    only = Scope(SCOPE.from_, SCOPE.to, pool="small")
    assert [value for value in hotspots.imbalance(only, now=NOW).ratio if value is not None] == [1.0]
    assert hotspots.worker_load(SCOPE, now=NOW).parts[-1] == ("llama/w1", 600.0)


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=20).filter(any))
def test_gini_is_half_the_mean_difference_over_the_mean(amounts: list[int]) -> None:
    found = concentration([(str(place), float(amount)) for place, amount in enumerate(amounts)])
    differences = sum(abs(one - two) for one in amounts for two in amounts)
    assert found.gini == pytest.approx(differences / (2 * len(amounts) * sum(amounts)))
    curve = found.curve()
    assert curve[0] == (0.0, 0.0) and curve[-1] == pytest.approx((1.0, 1.0))
    assert all(y <= x + 1e-9 for x, y in curve)
    assert [y for _, y in curve] == sorted(y for _, y in curve)


def test_gini_of_one_part_or_of_nothing_is_unknown() -> None:
    assert concentration([("a", 5.0)]).gini is None
    assert concentration([("a", 0.0), ("b", 0.0)]).gini is None
    assert concentration([]).gini is None


def sample(
    request_id: str, worker: str, *candidates: Candidate, prefix: str = A, tenant: str = "acme"
) -> DecisionSample:
    return DecisionSample(
        at=(NOW - timedelta(minutes=5)).timestamp(), request_id=request_id, tenant=tenant,
        namespace=f"{tenant}/support",
        pool="llama", model="m", policy_version=1, worker=worker, reason="prefix", sentence="", prefix=prefix,
        candidates=list(candidates),
    )  # fmt: skip


@pytest.mark.django_db
def test_a_decision_is_set_beside_the_longest_match_that_could_be_chosen() -> None:
    held = Candidate("llama/w1", 4096, queue_ms=900.0)
    idle = Candidate("llama/w2", 512, queue_ms=5.0)
    gone = Candidate("llama/w3", 9000, queue_ms=1.0, excluded="drain")
    told(decisions=[
        sample("left", "llama/w2", held, idle, gone),
        sample("kept", "llama/w1", held, idle, prefix=B),
        sample("unexplained", "llama/w1"),
        sample("foreign", "llama/w1", held, tenant="globex"),
    ])  # fmt: skip
    own = Scope(SCOPE.from_, SCOPE.to, tenant="acme")
    points = {point.request_id: point for point in hotspots.queue_against_match(own, now=NOW)}
    assert set(points) == {"left", "kept"}
    left = points["left"]
    assert (left.matched_tokens, left.queue_ms, left.best_worker, left.best_matched_tokens, left.best_queue_ms) == (
        512, 5.0, "llama/w1", 4096, 900.0,
    )  # fmt: skip
    assert left.left_the_best and not points["kept"].left_the_best
    assert [one.request_id for one in hotspots.queue_against_match(own, now=NOW, prefix=B)] == ["kept"]


def known(**changes: object) -> Known:
    values: dict[str, object] = {
        "head_tokens": 3200, "block_size": 16, "requests_per_s": 2.0, "effective_workers": 1.0, "queue_ms": 130.0,
        "pool_queue_ms": 30.0, "prefill_tokens_per_s": 10_000.0, "kv_bytes_per_token": 131_072,
        "rooms": [Room("w0", 0, True), Room("w1", 50, False), Room("w2", 150, False), Room("w3", 400, False)],
    }  # fmt: skip
    return Known(**(values | changes))  # type: ignore[arg-type]


def test_spreading_states_each_term_of_its_model() -> None:
    two, three, four = spreads(known(), homes_max=64)
    assert (two.homes, two.share, two.copies, two.blocks) == (2, 0.5, 1, 400)
    assert two.gib == pytest.approx(2 * 3200 * 131_072 / GIB)
    assert two.copy_ms == pytest.approx(320.0)
    assert two.saved_queue_ms == pytest.approx(50.0), "half of the 100 ms that are its own making"
    assert two.saved_queue_s_per_h == pytest.approx(50.0 * 2.0 * 3.6)
    assert two.evicted_blocks == round((150 + 50 + 0) / 3)
    assert (three.copies, four.copies) == (2, 3)
    assert four.saved_queue_ms == pytest.approx(75.0)


def test_what_is_not_known_leaves_its_own_term_unknown() -> None:
    assert spreads(known(kv_bytes_per_token=None), homes_max=2)[0].gib is None
    assert spreads(known(prefill_tokens_per_s=None), homes_max=2)[0].copy_ms is None
    unheard = spreads(known(pool_queue_ms=None), homes_max=2)[0]
    assert (unheard.saved_queue_ms, unheard.saved_queue_s_per_h) == (None, None)
    blind = [Room("w0", None, True), Room("w1", None, False)]
    assert spreads(known(rooms=blind), homes_max=2)[0].evicted_blocks is None


def test_nothing_is_saved_where_it_is_spread_already_and_nothing_evicted_by_copies_that_are_there() -> None:
    rooms = [Room(f"w{number}", 0, True) for number in range(4)]
    row = spreads(known(rooms=rooms, effective_workers=4.0), homes_max=3)[-1]
    assert (row.homes, row.copies, row.evicted_blocks, row.saved_queue_ms) == (3, 0, 0, 0.0)
    assert spreads(known(queue_ms=10.0), homes_max=2)[0].saved_queue_ms == 0.0


def test_a_pool_of_one_worker_has_nothing_to_spread_over() -> None:
    assert spreads(known(rooms=[Room("w0", 0, True)]), homes_max=64) == []


@pytest.mark.django_db
def test_the_effect_of_a_rule_is_the_hour_before_it_against_its_last_hour() -> None:
    began = NOW - timedelta(minutes=30)
    told(heat(A, {"llama/w1": 9, "llama/w2": 1}, prompt_tokens=10, queue_ms=1000.0), at=began - timedelta(minutes=10))
    told(heat(A, {"llama/w1": 8}, prompt_tokens=10, queue_ms=800.0), at=began - timedelta(hours=2), seq=1)
    told(heat(A, {"llama/w1": 4, "llama/w2": 3, "llama/w3": 3}, prompt_tokens=10, queue_ms=100.0),
         at=began + timedelta(minutes=10), seq=2)  # fmt: skip
    told(heat(A, {"llama/w9": 50}, "globex/agents"), at=began + timedelta(minutes=10), seq=3)
    ruled = Ruled("acme/support", "llama", A, began, NOW)
    (effect,) = effects([ruled])
    assert (effect.before.requests, effect.before.workers, effect.before.top_share) == (10, 2, 0.9)
    assert (effect.under.requests, effect.under.workers, effect.under.top_share) == (10, 3, 0.4)
    assert (effect.before.queue_ms, effect.under.queue_ms) == (100.0, 10.0)
    assert effects([]) == []

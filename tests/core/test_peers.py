"""Load of other routers: counted at once when told, faded when they fall silent."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.contract.live import WorkerLive
from router.core.peers import PEER_FADED_S, PEER_FRESH_S, PeerLoad, PeerLoads, weight
from tests.core.scene import Scene, prompt, snapshot, worker_id

W = [worker_id(number) for number in range(4)]
WORK_TOKENS = 11_250
"""Prefill of 10,000 tokens where attention doubles a token's cost at 40,000: 10,000 × (1 + 5,000 ÷ 40,000)."""


def tell(scene: Scene, *peers: Scene) -> None:
    """One exchange: what each peer publishes reaches the scene."""
    loads = {str(number): peer.table.own_load(now=peer.now) for number, peer in enumerate(peers)}
    scene.table.apply_peers(now=scene.now, loads=loads)


def queue_ms(scene: Scene, number: int) -> float:
    return next(each.queue_ms for each in scene.choose(prompt(9, 4000)).candidates if each.worker == W[number])


def test_a_peers_reservations_count_like_own_ones() -> None:
    one, two = Scene(), Scene()
    two.start_on(1, prompt(1, 40_000))
    tell(one, two)
    assert queue_ms(one, 1) == pytest.approx(queue_ms(two, 1), rel=0.01)
    assert queue_ms(one, 0) == 0


def test_it_publishes_only_busy_workers_and_what_is_left_to_prefill() -> None:
    scene = Scene()
    scene.start_on(2, prompt(1, 40_000))
    assert set(scene.table.own_load(now=scene.now)) == {W[2]}
    assert scene.table.own_load(now=scene.now)[W[2]] == PeerLoad(WORK_TOKENS, 1, scene.now)
    assert scene.table.own_load(now=scene.now + 0.5)[W[2]].pending_prefill_tokens == pytest.approx(WORK_TOKENS - 5000)


@pytest.mark.parametrize(("age_s", "share"), [(0, 1.0), (PEER_FRESH_S, 1.0), (3.0, 0.5), (PEER_FADED_S, 0.0), (60, 0)])
def test_a_silent_peers_load_fades_after_two_seconds(age_s: float, share: float) -> None:
    one, two = Scene(), Scene()
    two.start_on(1, prompt(1, 40_000))
    tell(one, two)
    one.now += age_s
    one.table.apply_live(now=one.now, workers={}, kv={})
    assert queue_ms(one, 1) == pytest.approx(share * (WORK_TOKENS / 10 + 1.5), rel=0.01)
    assert weight(age_s) == share


def test_it_fades_even_when_nothing_is_told_any_more() -> None:
    one, two = Scene(), Scene()
    two.start_on(1, prompt(1, 40_000))
    tell(one, two)
    seen = []
    for _ in range(60):
        one.now += 0.1
        seen.append(queue_ms(one, 1))
    assert seen == sorted(seen, reverse=True)
    assert len(set(seen)) > 5
    assert seen[-1] == 0


def test_a_newer_telling_replaces_the_one_before() -> None:
    one, two = Scene(), Scene()
    reservation = two.start_on(1, prompt(1, 40_000))
    tell(one, two)
    two.finish(reservation)
    tell(one, two)
    assert queue_ms(one, 1) == 0


def test_polled_requests_and_peers_are_not_counted_twice() -> None:
    scene = Scene()
    polled = {W[1]: WorkerLive(at=scene.now, running=5, waiting=0)}
    scene.table.apply_peers(now=scene.now, loads={"r2": {W[1]: PeerLoad(0.0, 4, scene.now)}})
    scene.table.apply_live(now=scene.now, workers=polled, kv={})
    outstanding = {each.worker: each.outstanding for each in scene.choose(prompt(9, 4000)).candidates}
    assert outstanding[W[1]] == 5
    assert scene.table._fleet.pools["llama"].foreign_requests == 5


def test_without_peers_the_pollers_remain_the_source() -> None:
    scene = Scene()
    scene.table.apply_peers(now=scene.now, loads={})
    scene.table.apply_live(now=scene.now, workers={W[1]: WorkerLive(at=scene.now, running=3, waiting=1)}, kv={})
    outstanding = {each.worker: each.outstanding for each in scene.choose(prompt(9, 4000)).candidates}
    assert outstanding[W[1]] == 4


def test_four_routers_that_tell_each_other_spread_a_burst_as_one_router_does() -> None:
    """Cold prompts without affinity to any worker, a telling every 10 requests: within a quarter of even."""
    routers = [Scene(snapshot(workers=4), seed=number) for number in range(4)]
    used: Counter[str] = Counter()
    for number in range(200):
        router = routers[number % 4]
        used[router.start(b"hello").decision.worker] += 1
        if number % 10 == 9:
            for each in routers:
                tell(each, *(peer for peer in routers if peer is not each))
    assert max(used.values()) <= 1.25 * 50


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 1e6), st.integers(0, 100), st.floats(0, 10)), max_size=40))
def test_sums_are_bounded_by_what_was_told_and_never_negative(told: list[tuple[int, float, int, float]]) -> None:
    peers, rng = PeerLoads(), random.Random(1)
    loads = [{W[worker]: PeerLoad(tokens, requests, 100.0 - age_s)} for worker, tokens, requests, age_s in told]
    peers.take(loads, now=100.0)
    for now in sorted(100.0 + rng.random() * 6 for _ in range(10)):
        for worker, (tokens, requests) in peers.sums(now=now).items():
            own = [each for each in told if W[each[0]] == worker]
            assert 0 <= tokens <= sum(each[1] for each in own) * 1.0001
            assert 0 <= requests <= sum(each[2] for each in own) * 1.0001
    assert peers.sums(now=110.0) == {}

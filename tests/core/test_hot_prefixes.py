"""Homes of hot prefixes (S3.6) and the load they leave on the worst worker: C37, C39, A14."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.hot import COLD_REQUESTS, HALF_LIFE_S, HOME_LOAD, REQUESTS_MIN, HotPrefixes
from router.core.ring import Ring
from tests.core.scene import Scene, prompt, snapshot, worker_id
from tests.core.served import Served, serve_all

FIRST = 4


def chain(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.getrandbits(128) for _ in range(length)]


def heated(hashes: list[int], *, load: float, for_s: int = 200, hot: HotPrefixes | None = None) -> HotPrefixes:
    """A prefix with ten requests a second that together take `load` of one worker."""
    hot = HotPrefixes(prefixes_max=1000) if hot is None else hot
    for number in range(for_s * 10):
        hot.add(hashes, FIRST, load_ms=load * 100.0, requests=1.0, now=number / 10)
    return hot


def homes(hot: HotPrefixes, hashes: list[int], *, now: float, share: float = 0.0, most: int = 64) -> int:
    head = hot.head(hashes, FIRST, block_share=share, homes_max=most, now=now)
    return 1 if head is None else head.homes


@pytest.mark.parametrize(("load", "expected"), [(0.05, 1), (0.35, 4), (1.0, 10), (4.0, 40), (20.0, 64)])
def test_the_number_of_homes_is_the_measured_load_over_that_of_a_home(load: float, expected: int) -> None:
    head = chain(1, 40)
    assert abs(homes(heated(head, load=load), head, now=200.0) - expected) <= max(1, expected // 10)
    assert HOME_LOAD == 0.1


def test_a_long_head_must_bring_more_load_for_each_copy() -> None:
    head = chain(1, 40)
    hot = heated(head, load=1.0)
    found = hot.head(head, FIRST, block_share=0.9 / 28, homes_max=64, now=200.0)
    assert found is not None
    assert found.homes < 4
    assert homes(hot, head, now=200.0) == 10


def test_it_falls_back_when_it_cools_down() -> None:
    head = chain(1, 40)
    hot = heated(head, load=2.0)
    counts = [homes(hot, head, now=200.0 + wait_s) for wait_s in (0, HALF_LIFE_S, 3 * HALF_LIFE_S, 10 * HALF_LIFE_S)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] >= 19
    assert counts[-1] == 1


def test_the_hot_head_ends_where_the_prompts_part() -> None:
    head, hot = chain(1, 30), HotPrefixes(prefixes_max=1000)
    for number in range(400):
        hot.add(head + chain(100 + number, 60), FIRST, load_ms=200.0, requests=1.0, now=number / 10)
    found = hot.head(head + chain(7777, 60), FIRST, block_share=0.0, homes_max=64, now=40.0)
    assert found is not None
    assert found.blocks == 28
    assert found.key == head[27]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 60), st.integers(1, 400)), max_size=80),
    st.integers(0, 3),
    st.integers(1, 60),
    st.sampled_from([0.0, 0.01, 0.3]),
)
def test_the_hot_head_is_the_deepest_that_is_hot_with_all_above_it(
    requests: list[tuple[int, int, int]], which: int, blocks: int, share: float
) -> None:
    """Four families of prompts that part at 7 and at 25 blocks."""
    families = [chain(1, 7) + chain(2 + number // 2, 18) + chain(9 + number, 40) for number in range(4)]
    hot = HotPrefixes(prefixes_max=1000)
    for at, (family, length, load_ms) in enumerate(requests):
        hot.add(families[family][:length], FIRST, load_ms=load_ms * 10.0, requests=1.0, now=at * 0.7)
    now, prompt_ = len(requests) * 0.7, families[which][:blocks]
    expected = None
    for depth in (FIRST, 6, 9, 13, 19, 28, 42) if blocks >= FIRST else (blocks,):
        entry = hot._entries.get(prompt_[depth - 1]) if depth <= blocks else None
        decay = 2.0 ** ((hot._began - now) / HALF_LIFE_S)
        if entry is None or entry.requests * decay < REQUESTS_MIN:
            break
        homes = entry.load_ms * decay * math.log(2.0) / (HALF_LIFE_S * 1000.0) / (HOME_LOAD + depth * share)
        if homes <= 1.0:
            break
        expected = (prompt_[depth - 1], depth, min(math.ceil(homes), 16))
    found = hot.head(prompt_, FIRST, block_share=share, homes_max=16, now=now)
    assert (None if found is None else (found.key, found.blocks, found.homes)) == expected


def test_one_long_prompt_is_no_crowd() -> None:
    hot, head = HotPrefixes(prefixes_max=1000), chain(1, 40)
    hot.add(head, FIRST, load_ms=60_000.0, requests=1.0, now=0.0)
    assert homes(hot, head, now=0.0) == 1


@pytest.mark.interpreted
def test_heat_is_the_same_whenever_its_units_are_brought_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    head = chain(1, 40)
    expected = homes(heated(head, load=1.7), head, now=210.0)
    monkeypatch.setattr("router.core.hot.FORWARD_HALF_LIVES_MAX", 1.5)
    hot = heated(head, load=1.7)
    assert hot._began > 100.0
    assert homes(hot, head, now=210.0) == expected > 10


def test_a_prefix_that_comes_rarely_is_followed_at_one_depth() -> None:
    head, hot = chain(1, 400), HotPrefixes(prefixes_max=1000)
    for number in range(50):
        hot.add(head, FIRST, load_ms=100.0, requests=1.0, now=number * 3 * HALF_LIFE_S)
    assert len(hot) == 1
    for number in range(50):
        hot.add(head, FIRST, load_ms=100.0, requests=1.0, now=10_000.0 + number)
    assert len(hot) > 8


def test_a_flood_of_unique_prompts_displaces_no_hot_prefix_and_stays_bounded() -> None:
    hot, head = HotPrefixes(prefixes_max=200), chain(1, 40)
    heated(head, load=1.0, hot=hot)
    for number in range(5000):
        hot.add(chain(10 + number, 20), FIRST, load_ms=50.0, requests=1.0, now=200.0 + number / 1000)
        assert len(hot) <= 200
    assert homes(hot, head, now=205.0) >= 7
    assert COLD_REQUESTS > 1.0


@given(st.integers(0, 2**64), st.integers(1, 12), st.integers(1, 12))
def test_homes_of_two_routers_are_nested_and_a_missing_worker_moves_only_its_own(key: int, one: int, two: int) -> None:
    ring = Ring([worker_id(number) for number in range(12)], virtual_nodes=20)
    few, many = sorted((one, two))
    assert ring.homes(key, many, lambda _: True)[:few] == ring.homes(key, few, lambda _: True)
    assert ring.homes(key, 1, lambda _: True) == [ring.home(key)]
    without = ring.homes(key, few, lambda worker: worker != worker_id(3))
    assert [worker for worker in ring.homes(key, few + 1, lambda _: True) if worker != worker_id(3)][:few] == without


def run(workers: int, prompts: list[bytes], requests_per_s: float) -> Served:
    scene = Scene(snapshot(workers=workers, capacity_tokens=500_000))
    return serve_all(scene, prompts, requests_per_s=requests_per_s)


@pytest.mark.parametrize(("workers", "requests_per_s"), [(4, 2), (4, 12), (8, 4), (8, 30), (16, 8), (16, 48)])
def test_a14_one_prefix_of_95_percent_of_all_traffic_loads_no_worker_above_1_5_times_the_mean(
    workers: int, requests_per_s: float
) -> None:
    """12k shared tokens and 500 own ones; from a tenth to three fifths of the pool's capacity."""
    rng = random.Random(5)
    head = rng.randbytes(48_000)
    prompts = [head + rng.randbytes(2000) if rng.random() < 0.95 else rng.randbytes(12_000) for _ in range(600)]
    served = run(workers, prompts, requests_per_s)
    assert len(served.late_requests) == workers
    assert served.spread() <= 1.5
    recomputed_s = sum(engine.prefill_s for engine in served.engines.values())
    own_s = sum(len(text) // 4 if not text.startswith(head) else 600 for text in prompts) / 10_000
    assert recomputed_s <= own_s + 1.2 * workers * 1.3


def test_c37_a_common_head_with_long_private_tails_spreads_and_keeps_conversations_together() -> None:
    rng = random.Random(6)
    head = rng.randbytes(8000)
    talks = [head + rng.randbytes(16_000) for _ in range(60)]
    prompts = []
    for _ in range(600):
        which = rng.randrange(60)
        talks[which] += rng.randbytes(1200)
        prompts.append(talks[which])
    served = run(4, prompts, 6)
    assert served.spread() <= 1.5
    total = sum(len(text) for text in prompts) / 4 / 10_000
    assert sum(engine.prefill_s for engine in served.engines.values()) <= 0.15 * total


def test_c39_nothing_is_reused_and_every_worker_works() -> None:
    served = run(5, [prompt(seed, 8000) for seed in range(500)], 10)
    assert len(served.requests) == 5
    assert served.spread() <= 1.3


def test_s3_7_new_prefixes_go_where_they_evict_least() -> None:
    scene = Scene(snapshot(workers=2, capacity_tokens=60_000))
    for seed in range(20):
        scene.finish(scene.start_on(0, prompt(seed % 10, 40_000)), cached=0)
        scene.now += 1.0
    fresh = {scene.choose(prompt(900 + seed, 20_000)).worker for seed in range(20)}
    assert fresh == {worker_id(1)}
    harm = {each.worker: each.pressure_ms for each in scene.choose(prompt(1000, 20_000)).candidates}
    assert harm[worker_id(1)] < 0.05 * harm[worker_id(0)], "what is left is the delay of those that come meanwhile"


def test_eviction_aware_placement_evicts_less_than_the_ring_alone() -> None:
    """Pools that have room for all conversations, but not wherever the ring would put them."""
    evicted = {"tidemark": 0, "ring": 0}
    for seed in range(6):
        rng = random.Random(seed)
        talks = [rng.randbytes(rng.choice((20_000, 160_000))) for _ in range(60)]
        prompts = [talks[rng.randrange(60)] + rng.randbytes(600) for _ in range(500)]
        for routing in evicted:
            scene = Scene(snapshot(workers=4, capacity_tokens=420_000))
            pool = scene.policy.pools["llama"]
            policies = {"llama": type(pool)(models=pool.models, routing=routing)}
            policy = scene.policy
            scene.publish(type(policy)(policy.tenants, policy.keys, policy.namespaces, policies, policy.workers))
            served = serve_all(scene, prompts, requests_per_s=2, capacity_tokens=420_000)
            evicted[routing] += sum(engine.evicted for engine in served.engines.values())
    assert evicted["tidemark"] < 0.25 * evicted["ring"]

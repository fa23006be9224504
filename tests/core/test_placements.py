"""Placement rules: a prefix is spread over at least so many workers by an operator's word (S3.6)."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from router.contract.snapshot import Placement
from router.core.explain import sentence
from router.core.hot import HotPrefixes
from router.core.model import Reservation
from tests.core.scene import POOL, Scene, namespace_id, prompt, snapshot
from tests.core.test_hot_prefixes import chain

HEAD = prompt(1, 6000)


def rule(scene: Scene, text: bytes, homes: int, *, tenant: str = "alice", for_s: float = 600.0) -> Placement:
    fingerprint = scene.request(text, tenant).fingerprint
    assert fingerprint is not None
    prefix = scene.table._heat.id_of(fingerprint)
    return Placement(namespace_id(tenant), POOL, prefix, homes, scene.now + for_s)


def spread(scene: Scene, *rules: Placement) -> None:
    scene.publish(msgspec.structs.replace(scene.policy, placements=rules))


def turn(scene: Scene, seed: int, *, head: bytes = HEAD, tenant: str = "alice") -> str:
    """One request a second of which little is left to compute, so that load alone asks for one home."""
    return served(scene, scene.start(prompt(seed, 6400, head=head), tenant))


def served(scene: Scene, reservation: Reservation) -> str:
    hits = reservation.decision.predicted_hit_tokens
    scene.finish(reservation, cached=hits, ttft_s=reservation.prefill_tokens / 10_000)
    scene.now += 1.0
    return str(reservation.decision.worker)


def warm(workers: int = 6) -> Scene:
    scene = Scene(snapshot(workers=workers, capacity_tokens=500_000))
    assert len({turn(scene, seed) for seed in range(20)}) == 1
    return scene


@pytest.mark.parametrize("homes", [2, 3, 5])
def test_its_requests_go_to_so_many_workers_in_equal_parts(homes: int) -> None:
    scene = warm()
    spread(scene, rule(scene, HEAD, homes))
    # First those that had none of it are given more, until the one that had it all has cooled down.
    first = {turn(scene, 100 + seed) for seed in range(180)}
    workers = Counter(turn(scene, 1000 + seed) for seed in range(60))
    assert set(workers) == first
    assert len(workers) == homes
    assert max(workers.values()) <= 1.3 * 60 / homes


def test_other_prefixes_and_other_namespaces_stay_where_they_were() -> None:
    scene = warm()
    other = prompt(7, 6000)
    before = {turn(scene, 200 + seed, head=other) for seed in range(5)}
    foreign = {turn(scene, 300 + seed, tenant="charlie") for seed in range(5)}
    spread(scene, rule(scene, HEAD, 4))
    assert {turn(scene, 400 + seed, head=other) for seed in range(20)} == before
    assert {turn(scene, 500 + seed, tenant="charlie") for seed in range(20)} == foreign


def test_it_ends_by_the_routers_own_clock() -> None:
    scene = warm()
    spread(scene, rule(scene, HEAD, 4, for_s=30.0))
    assert len({turn(scene, 100 + seed) for seed in range(25)}) == 4
    scene.now += 60.0
    decision = scene.choose(prompt(999, 6400, head=HEAD))
    assert decision.spread == 0
    assert "placement rule" not in sentence(decision)


def test_it_ends_with_the_snapshot_that_lacks_it() -> None:
    scene = warm()
    spread(scene, rule(scene, HEAD, 4))
    assert scene.choose(HEAD).spread == 4
    spread(scene)
    assert scene.choose(HEAD).spread == 0


def test_a_decision_says_which_prefix_and_that_a_rule_spread_it() -> None:
    scene = warm()
    placed = rule(scene, HEAD, 3)
    assert scene.choose(HEAD).prefix == placed.prefix
    spread(scene, placed)
    decision = scene.choose(prompt(50, 6400, head=HEAD))
    assert (decision.prefix, decision.spread) == (placed.prefix, 3)
    assert "a placement rule spreads its prefix over 3 workers" in sentence(decision)


def test_a_session_stays_on_its_worker() -> None:
    scene = warm()
    spread(scene, rule(scene, HEAD, 4))
    first = served(scene, scene.start(prompt(600, 6400, head=HEAD), session="one"))
    turns = [served(scene, scene.start(prompt(600, 6400, head=HEAD), session="one")) for _ in range(12)]
    assert set(turns) == {first}


def test_more_homes_than_workers_are_all_workers() -> None:
    scene = warm(workers=3)
    spread(scene, rule(scene, HEAD, 50))
    assert len({turn(scene, 100 + seed) for seed in range(30)}) == 3


def test_what_is_told_of_a_prefix_says_where_it_is_and_what_the_rule_did() -> None:
    scene = warm()
    scene.table.drain_heat(now=scene.now)
    spread(scene, rule(scene, HEAD, 3))
    for seed in range(30):
        turn(scene, 100 + seed)
    (heat,) = scene.table.drain_heat(now=scene.now)
    assert (heat.placed, heat.homes, len(heat.holders)) == (30, 3, 3)
    assert set(heat.by_worker) == set(heat.holders)
    assert heat.prompt_tokens > heat.hit_tokens > 0
    assert 0 < heat.load < 1
    assert 512 <= heat.head_tokens <= 6000 / 3
    assert heat.head_tokens > heat.tokens


def test_the_shared_head_ends_where_conversations_begin() -> None:
    hot, head = HotPrefixes(prefixes_max=1000), chain(1, 30)
    for number in range(300):
        hot.add(head + chain(100 + number % 10, 60), 4, load_ms=2.0, requests=1.0, now=number / 10)
    assert hot.shared_blocks(head + chain(103, 60), 4) == 28
    assert hot.shared_blocks(head + chain(9999, 60), 4) == 28
    assert hot.shared_blocks(chain(5, 60), 4) == 4
    assert hot.shared_blocks(chain(5, 2), 4) == 2
    assert hot.load(head[3], now=30.0) == pytest.approx(0.0131, rel=0.05)
    assert hot.load(1234, now=30.0) == 0.0

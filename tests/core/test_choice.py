"""Filter → Score → Pick: S0.7, S2.1, S2.3, S3.4, S4.3, C35, C37, C39, C55, C63."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from router.contract.ids import PoolId, WorkerId
from router.contract.snapshot import PolicySnapshot, PoolPolicy, WorkerEntry
from router.core.explain import sentence
from router.core.model import DECISION_REASONS, NoWorker
from router.core.rates import PrefillRate
from tests.core.scene import MODEL, Scene, prompt, snapshot, worker_id

W = [worker_id(number) for number in range(8)]


def with_routing(name: str, workers: int = 4) -> Scene:
    return Scene(snapshot(workers=workers, pool=PoolPolicy(models=(MODEL,), routing=name)))  # type: ignore[arg-type]


def set_rate(scene: Scene, number: int, tokens_per_s: float) -> None:
    scene.table._fleet.workers[worker_id(number)].rate = PrefillRate(tokens_per_s, samples=100)


def test_a_prompt_returns_to_the_worker_that_holds_it() -> None:
    scene = Scene()
    for seed in range(20):
        text = prompt(seed, 6000)
        first = scene.serve(text)
        again = scene.choose(text + prompt(seed + 500, 2000))
        assert (again.worker, again.reason) == (first, "prefix")
        assert again.matched_blocks == 11
        assert again.predicted_hit_tokens == 11 * 128


def test_new_prefixes_go_to_their_home_and_two_routers_agree() -> None:
    one, two = Scene(seed=1), Scene(seed=2)
    for seed in range(40):
        text = prompt(seed, 4000)
        assert one.choose(text).reason == "home"
        assert one.choose(text).worker == two.choose(text).worker


def test_s3_4_waiting_longer_than_the_cache_saves_sends_it_to_the_other_worker() -> None:
    """A holds 4K tokens, which saves 80 ms there, and queues 120 ms; B recomputes them in 45 ms."""
    scene, text = Scene(snapshot(workers=2)), prompt(1, 4096 * 4)
    scene.finish(scene.start_on(0, text))
    set_rate(scene, 0, 4096 / 0.080)
    set_rate(scene, 1, 4096 / 0.045)
    assert scene.choose(text).worker == W[0]
    worker = scene.table._fleet.workers[W[0]]
    worker.load.reserve(int(0.120 * 4096 / 0.080), tokens_per_s=4096 / 0.080, now=scene.now)
    worker.burden = None
    decision = scene.choose(text)
    queue = {candidate.worker: candidate.queue_ms for candidate in decision.candidates}
    assert queue[W[0]] == pytest.approx(120, abs=1)
    assert (decision.worker, decision.reason, decision.spill, decision.preferred) == (W[1], "spill_load", "load", W[0])


def test_s4_3_a_queue_shorter_than_the_saving_is_waited_for() -> None:
    scene, text = Scene(snapshot(workers=2)), prompt(1, 40_000)
    scene.finish(scene.start_on(0, text))
    scene.start_on(0, prompt(2, 8_000))
    decision = scene.choose(text)
    assert (decision.worker, decision.spill) == (W[0], "")


def test_s2_3_above_the_red_line_the_least_loaded_worker_takes_over() -> None:
    scene, text = Scene(snapshot(pool=PoolPolicy(models=(MODEL,), spill_outstanding=16))), prompt(1, 4000)
    home = scene.serve(text)
    for _ in range(100):
        scene.table.first_byte(scene.start(text), now=scene.now)
    outstanding = scene.table.state(now=scene.now).worker_outstanding
    assert 16 <= outstanding[home] <= 32
    assert min(outstanding.values()) >= 16


def test_a14_one_prefix_of_all_traffic_spreads_over_the_pool() -> None:
    scene, text = Scene(), prompt(1, 8000)
    for _ in range(200):
        scene.table.first_byte(scene.start(text), now=scene.now)
    outstanding = list(scene.table.state(now=scene.now).worker_outstanding.values())
    assert max(outstanding) <= 1.5 * sum(outstanding) / len(outstanding)


def test_s0_7_prompts_below_one_block_are_spread_and_not_always_the_first() -> None:
    scene = Scene()
    used = Counter(scene.serve(b"hello") for _ in range(40))
    assert set(used.values()) == {10}
    assert scene.choose(b"hello").reason == "least_outstanding"


def test_short_prompts_avoid_the_busy_worker() -> None:
    scene = Scene()
    for seed in range(3):
        scene.start_on(0, prompt(seed, 20_000))
    assert W[0] not in {scene.serve(b"hello") for _ in range(20)}


def test_c35_a_cold_prompt_avoids_the_overloaded_worker_that_holds_least() -> None:
    scene = Scene()
    for seed in range(12):
        scene.serve(prompt(seed, 3000))
    for seed in range(10):
        scene.start_on(2, prompt(50 + seed, 30_000))
    assert W[2] not in {scene.choose(prompt(100 + seed, 8000)).worker for seed in range(30)}


def test_c37_a_common_short_head_does_not_pull_all_traffic_to_one_worker() -> None:
    scene, head = Scene(), prompt(1, 1100)
    used = Counter(scene.serve(prompt(seed, 24_000, head=head)) for seed in range(2, 82))
    assert max(used.values()) <= 40
    assert len(used) == 4


def test_c37_a_common_head_of_some_weight_spreads_too() -> None:
    scene, head = Scene(), prompt(1, 4096)
    used: Counter[WorkerId] = Counter()
    for seed in range(2, 162):
        used[scene.serve(prompt(seed, 24_000, head=head))] += 1
        scene.now += 0.5
    assert max(used.values()) <= 80
    assert len(used) == 4


def test_c39_all_workers_are_used_when_nothing_is_reused() -> None:
    scene = Scene(snapshot(workers=5))
    used = Counter()
    for seed in range(200):
        used[scene.serve(prompt(seed, 8000))] += 1
        scene.now += 0.1
    assert len(used) == 5
    assert max(used.values()) <= 2.0 * 40


@pytest.mark.parametrize("workers", [2, 4])
def test_c39_caches_that_turn_over_unused_share_the_new_prefixes(workers: int) -> None:
    scene = Scene(snapshot(workers=workers, capacity_tokens=16_000))
    used: Counter[str] = Counter()
    for seed in range(40 * workers):
        used[scene.serve(prompt(seed, 16_000))] += 1
        scene.now += 0.5
    assert len(used) == workers
    assert max(used.values()) < 1.6 * 40, used


@pytest.mark.parametrize("state", ["drain", "maintenance"])
def test_c55_a_terminating_worker_gets_nothing_from_the_snapshot_on(state: str) -> None:
    scene, text = Scene(), prompt(1, 9000)
    home = scene.serve(text, session="s")
    scene.set_state(int(home[-1]), state)
    decision = scene.choose(text, session="s")
    assert decision.worker != home
    assert (decision.spill, decision.preferred) == ("drain", home)
    assert home not in {scene.serve(prompt(seed, 3000)) for seed in range(50)}
    assert scene.table.state(now=scene.now).worker_states[home] == state


def test_a_drained_worker_that_returns_still_has_its_prefixes() -> None:
    scene, text = Scene(), prompt(1, 9000)
    home = scene.serve(text)
    scene.set_state(int(home[-1]), "drain")
    scene.set_state(int(home[-1]), "ready")
    assert scene.choose(text).worker == home


def test_c63_equal_slugs_in_two_pools_never_meet() -> None:
    base = snapshot(workers=1)
    other = PoolId("qwen")
    policy = msgspec.structs.replace(
        base,
        pools={**base.pools, other: PoolPolicy(models=("qwen-7b",))},
        workers={**base.workers, WorkerId("qwen/w0"): WorkerEntry(other, "http://10.1.0.1:8000")},
    )
    scene = Scene(policy)
    text = prompt(1, 5000)
    assert scene.serve(text) == "llama/w0"
    scene.table.worker_failed(WorkerId("qwen/w0"), now=scene.now)
    state = scene.table.state(now=scene.now)
    assert set(state.worker_states) == {"llama/w0", "qwen/w0"}
    assert scene.choose(text).worker == "llama/w0"


def test_a_retry_goes_elsewhere_and_says_so() -> None:
    scene, text = Scene(), prompt(1, 5000)
    home = scene.serve(text)
    decision = scene.choose(text, exclude=frozenset({home}))
    assert decision.worker != home
    assert (decision.reason, decision.spill) == ("retry", "retry")


@pytest.mark.parametrize("how", ["tried", "drained", "none", "no pool"])
def test_no_worker_left_is_a_clear_refusal(how: str) -> None:
    scene = Scene(snapshot(workers=0 if how == "none" else 2))
    request = scene.request(prompt(1, 2000), exclude=frozenset(W[:2]) if how == "tried" else frozenset())
    if how == "drained":
        scene.set_state(0, "drain")
        scene.set_state(1, "maintenance")
    if how == "no pool":
        scene.publish(PolicySnapshot(scene.policy.tenants, scene.policy.keys, scene.policy.namespaces, {}, {}))
    with pytest.raises(NoWorker) as caught:
        scene.table.choose(request, now=scene.now)
    assert caught.value.status == 503
    assert caught.value.retry_after_s > 0


def test_a_worker_that_never_delivers_its_hits_loses_its_pull() -> None:
    scene, text = Scene(), prompt(1, 8000)
    home = scene.serve(text)
    for _ in range(60):
        scene.finish(scene.start_on(int(home[-1]), text), cached=0)
    saved = {each.worker: each.saved_ms for each in scene.choose(text).candidates}
    assert saved[home] < 0.1 * scene.choose(text).predicted_prompt_tokens / 10
    assert scene.table.state(now=scene.now).worker_credit[home] < 0.1


def test_a_restarted_worker_is_not_credited_with_its_old_prefixes() -> None:
    scene, text = Scene(), prompt(1, 8000)
    home = scene.serve(text)
    scene.table.worker_forgotten(home)
    assert scene.choose(text).matched_blocks == 0


def test_a_request_that_failed_before_its_first_byte_leaves_no_belief() -> None:
    from router.core.model import Outcome

    scene, text = Scene(), prompt(1, 8000)
    reservation = scene.start(text)
    scene.table.release(reservation, Outcome(False, error="upstream_error", status=502), now=scene.now)
    assert scene.choose(text).matched_blocks == 0


def test_foreign_load_from_the_pollers_counts() -> None:
    from router.contract.live import WorkerLive

    scene = Scene(snapshot(workers=2))
    busy = {W[0]: WorkerLive(at=scene.now, running=30, waiting=10)}
    scene.table.apply_live(now=scene.now, workers=busy, kv={})
    assert {scene.serve(b"hello") for _ in range(10)} == {W[1]}
    assert {scene.choose(prompt(seed, 4000)).worker for seed in range(10)} == {W[1]}
    scene.now += 60
    scene.table.apply_live(now=scene.now, workers=busy, kv={})
    assert {scene.serve(b"hello") for _ in range(10)} == set(W[:2])


def test_round_robin_goes_round() -> None:
    scene = with_routing("round_robin")
    text = prompt(1, 5000)
    used = [scene.serve(text) for _ in range(8)]
    assert used[:4] == used[4:]
    assert len(set(used[:4])) == 4


@pytest.mark.parametrize("routing", ["round_robin", "least_outstanding"])
def test_full_workers_do_not_make_load_rules_follow_the_cache(routing: str) -> None:
    scene = with_routing(routing)
    text = prompt(1, 5000)
    scene.serve(text)
    scene.live(dict.fromkeys(range(1, 4), 0.95))
    used = Counter(scene.start(text).decision.worker for _ in range(40))
    assert used == dict.fromkeys(W[:4], 10)


def test_least_outstanding_ignores_the_cache() -> None:
    scene = with_routing("least_outstanding")
    text = prompt(1, 5000)
    assert Counter(scene.start(text).decision.worker for _ in range(40)) == dict.fromkeys(W[:4], 10)


def test_ring_follows_the_prefix_whatever_the_load() -> None:
    scene = with_routing("ring")
    text = prompt(1, 5000)
    assert len({scene.start(text).decision.worker for _ in range(60)}) == 1
    assert len({scene.start(prompt(seed, 5000)).decision.worker for seed in range(60)}) == 4
    assert len({scene.serve(b"short") for _ in range(8)}) == 4


@pytest.mark.parametrize("routing", ["tidemark", "round_robin", "least_outstanding", "ring"])
def test_every_policy_explains_itself_with_closed_reasons(routing: str) -> None:
    scene = with_routing(routing)
    for seed in range(30):
        decision = scene.choose(prompt(seed % 5, 3000), session="s" if seed % 3 == 0 else None)
        assert decision.reason in DECISION_REASONS
        assert len(decision.candidates) == 4
        chosen = next(each for each in decision.candidates if each.worker == decision.worker)
        terms = chosen.saved_ms - chosen.queue_ms - chosen.pressure_ms - chosen.imbalance_ms
        assert chosen.net_ms == pytest.approx(terms)
        assert sentence(decision).startswith(decision.worker.split("/")[1])
        scene.table.reserve(decision, now=scene.now)


def test_the_sentence_names_the_saving_the_queue_and_the_alternative() -> None:
    scene, text = Scene(), prompt(1, 40_000)
    home = scene.serve(text)
    said = sentence(scene.choose(text))
    assert said.startswith(f"{home.split('/')[1]}: holds 9,9")
    assert "of prefill for 0 ms of queue; least-loaded w" in said
    assert "would have recomputed 10,000 tokens" in said


def test_the_sentence_says_why_the_preferred_worker_was_left() -> None:
    scene, text = Scene(), prompt(1, 9000)
    home = scene.serve(text)
    scene.set_state(int(home[-1]), "drain")
    assert f"preferred {home.split('/')[1]} is draining" in sentence(scene.choose(text))


def test_the_same_state_gives_the_same_decision_with_and_without_explanation() -> None:
    scene = Scene()
    for seed in range(30):
        request = scene.request(prompt(seed % 7, 3000 + 100 * seed))
        plain = scene.table.choose(request, now=scene.now)
        explained = scene.table.choose(request, now=scene.now, explain=True)
        assert (plain.worker, plain.reason) == (explained.worker, explained.reason)
        assert plain.candidates == []
        scene.table.reserve(plain, now=scene.now)

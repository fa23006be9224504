"""Each policy's own rule, on scenes small enough to see the answer."""

from __future__ import annotations

import random

import pytest

from router.contract.ids import WorkerId
from router.core.ring import Ring
from simulator.fleet.baselines import LeastOutstanding, LongestPrefix, PowerOfTwo, RingWatermark, RoundRobin
from simulator.fleet.oracle import GreedyOracle, ttft_s
from simulator.fleet.peers import BlockCost, CacheAware, WeightedScorers
from simulator.fleet.policy import Policy, Sample, WorkerView
from simulator.fleet.tidemark import Tidemark, fingerprint
from simulator.fleet.workload import BLOCK_TOKENS
from tests.simulator.fleet.scenes import ROOMY, drain, request, views, warm


def chosen(policy: Policy, workers: list[WorkerView], *numbers: int, blocks: list[int] | None = None) -> list[int]:
    """Where the policy sends requests of these numbers; nothing else happens meanwhile."""
    return [policy.choose(request(n, blocks or [n], affinity=n), workers, 0.0).worker for n in numbers]


def with_kv_use(workers: list[WorkerView], use: list[float]) -> list[WorkerView]:
    for worker, share in zip(workers, use, strict=True):
        worker.sample = Sample(0.0, waiting=0, running=1, kv_use=share, resident_blocks=0, evictions_per_s=0.0)
    return workers


def test_round_robin_takes_turns() -> None:
    assert chosen(RoundRobin(), views(3), 1, 2, 3, 4) == [0, 1, 2, 0]


def test_least_outstanding_takes_the_fewest_and_ties_in_turn() -> None:
    workers = views(3)
    workers[0].outstanding = 1
    assert chosen(LeastOutstanding(), workers, 1, 2, 3) == [1, 2, 1]


def test_power_of_two_never_takes_the_busiest_of_three() -> None:
    workers = views(3)
    workers[1].outstanding = 5
    picks = chosen(PowerOfTwo(random.Random(1)), workers, *range(50))
    assert set(picks) == {0, 2}


def test_the_ring_keeps_a_session_where_it_is_until_its_home_is_full() -> None:
    policy, workers = RingWatermark(4), views(4)
    home = chosen(policy, workers, 7)[0]
    assert chosen(policy, workers, 7, 7) == [home, home]
    use = [0.5] * 4
    use[home] = 0.9
    policy.sampled(with_kv_use(workers, use), 0.0)
    moved = policy.choose(request(7, [7], affinity=7), workers, 0.0)
    assert moved.worker != home and moved.spilled
    use[home] = 0.7
    policy.sampled(with_kv_use(workers, use), 0.0)
    assert chosen(policy, workers, 7) == [moved.worker], "between the marks it stays full"
    use[home] = 0.6
    policy.sampled(with_kv_use(workers, use), 0.0)
    assert chosen(policy, workers, 7) == [home]


def test_the_ring_sends_known_prefixes_to_a_full_home() -> None:
    policy, workers = RingWatermark(4), views(4)
    home = chosen(policy, workers, 7)[0]
    warm(workers[home], [7])
    use = [0.5] * 4
    use[home] = 0.9
    policy.sampled(with_kv_use(workers, use), 0.0)
    assert chosen(policy, workers, 7) == [home]


def test_the_ring_spreads_small_session_numbers() -> None:
    picks = chosen(RingWatermark(4), views(4), *range(400))
    assert all(50 < picks.count(worker) < 200 for worker in range(4))
    assert Ring([WorkerId("0")], virtual_nodes=1).home(0) == "0"


def test_longest_prefix_ignores_load() -> None:
    workers = views(3)
    warm(workers[2], [1, 2, 3])
    warm(workers[1], [1, 2])
    workers[2].outstanding = 50
    assert chosen(LongestPrefix(), workers, 1, blocks=[1, 2, 3, 4]) == [2]


def test_cache_aware_follows_its_history_above_the_threshold_and_else_the_smallest_tree() -> None:
    policy, workers = CacheAware(), views(2)
    first = policy.choose(request(1, [1, 2, 3, 4]), workers, 0.0).worker
    other = policy.choose(request(2, [5, 6, 7]), workers, 0.0).worker
    assert other == 1 - first
    assert policy.choose(request(3, [1, 2, 8, 9]), workers, 0.0).worker == first, "half of it matches"
    assert policy.choose(request(4, [5, 10, 11, 12]), workers, 0.0).worker == other, "a quarter: the smaller tree"


def test_cache_aware_balances_when_far_out_of_balance() -> None:
    policy, workers = CacheAware(), views(2)
    holder = policy.choose(request(1, [1, 2]), workers, 0.0).worker
    workers[holder].outstanding = 64
    assert policy.choose(request(2, [1, 2]), workers, 0.0).worker == holder
    workers[holder].outstanding = 65
    assert policy.choose(request(3, [1, 2]), workers, 0.0).worker == 1 - holder


def test_weighted_scorers_let_a_queue_outweigh_half_a_prefix() -> None:
    policy = WeightedScorers(random.Random(1))
    workers = views(2)
    warm(workers[0], [1])
    assert policy.choose(request(1, [1, 2]), workers, 0.0).worker == 0
    for number in range(20):
        workers[0].engine.add(request(100 + number, [50 + number, 90 + number, 130 + number, 170 + number]), 0.0)
    assert workers[0].engine.waiting
    assert policy.choose(request(2, [1, 2]), workers, 0.0).worker == 1


def test_block_cost_weighs_uncached_blocks_against_blocks_under_way() -> None:
    policy, workers = BlockCost(random.Random(1)), views(2)
    warm(workers[0], [1, 2, 3])
    workers[0].active_blocks = 2
    assert policy.choose(request(1, [1, 2, 3]), workers, 0.0).worker == 0
    workers[0].active_blocks = 4
    assert policy.choose(request(2, [1, 2, 3]), workers, 0.0).worker == 1
    workers[1].pending_prefill_tokens = 2 * BLOCK_TOKENS
    assert policy.choose(request(3, [1, 2, 3]), workers, 0.0).worker == 0


def test_the_oracle_takes_the_worker_that_truly_answers_first() -> None:
    workers = views(3)
    warm(workers[0], [1, 2, 3])
    for number in range(6):
        workers[0].engine.add(request(100 + number, [50 + number, 60 + number, 70 + number]), 50.0)
    asked = request(1, [1, 2, 3])
    expected = [ttft_s(worker.engine, asked, 50.0) for worker in workers]
    pick = GreedyOracle().choose(asked, workers, 50.0).worker
    assert pick == expected.index(min(expected)) != 0
    sequence = workers[0].engine.add(asked, 50.0)
    drain(workers[0].engine)
    assert sequence.first_token_s == pytest.approx(50.0 + expected[0], rel=0.1)


def test_tidemark_returns_to_the_worker_it_sent_a_prefix_to() -> None:
    policy, workers = Tidemark(4, ROOMY, rng=random.Random(1)), views(4)
    blocks = list(range(1, 9))
    first = chosen(policy, workers, 1, blocks=blocks)[0]
    sequence = workers[first].engine.add(request(1, blocks), 0.0)
    drain(workers[first].engine)
    policy.first_token(sequence, 1.0)
    policy.finished(sequence, 1.5)
    again = policy.choose(request(2, [*blocks, 99]), workers, 2.0)
    assert (again.worker, again.spilled) == (first, False)


def test_tidemark_sees_the_prompt_as_the_router_would() -> None:
    asked = request(1, [1, 2], tail_tokens=100)
    prefix = fingerprint(asked)
    assert prefix.block_bytes == 512 and prefix.text_bytes == 4 * asked.prompt_tokens
    assert len(prefix.hashes) == 2 * BLOCK_TOKENS // 128

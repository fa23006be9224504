"""What a worker is believed to hold mirrors its cache: it follows the capacity, the oldest goes first."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from router.contract.ids import TenantId, WorkerId
from router.core.beliefs import DEAD_BITS_MAX, EPOCHS
from router.core.index import PrefixIndex
from tests.core.scene import Scene, prompt, snapshot, worker_id

ALICE = TenantId("alice")
W = [WorkerId(f"p/w{number}") for number in range(3)]
BYTES_A_BLOCK = 128


def index_of(capacity_blocks: float, *, entries_max: int = 100_000) -> PrefixIndex:
    index = PrefixIndex(bytes_max=entries_max * BYTES_A_BLOCK, tenant_share_max=1.0)
    for worker in W:
        index.add_worker(worker)
        index.set_capacity(worker, capacity_blocks)
    return index


def chain(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.getrandbits(128) for _ in range(length)]


def held(index: PrefixIndex, worker: WorkerId, chains: list[list[int]]) -> list[int]:
    """Blocks of each chain the worker is believed to hold."""
    return [dict(index.matches(ALICE, each)).get(worker, 0) for each in chains]


def test_what_a_full_cache_holds_is_believed_and_a_quarter_more() -> None:
    """Nine prompts of 12 blocks fill a quarter of 400 blocks: the oldest goes for the fifth, not for the fourth."""
    index, chains = index_of(400), [chain(seed, 12) for seed in range(200)]
    for number, each in enumerate(chains):
        index.insert(ALICE, each, W[0], now=number)
        believed = sum(held(index, W[0], chains[: number + 1]))
        assert min(400, 12 * (number + 1)) <= believed <= (EPOCHS + 1) * 9 * 12
        assert index.holder(W[0]).resident_blocks == believed


@given(st.integers(100, 1_000), st.integers(1, 25))
@settings(max_examples=40, deadline=None)
def test_of_what_a_full_cache_holds_half_a_quarter_is_forgotten_at_most(capacity: int, length: int) -> None:
    """Prompts of one length, none of which comes back: the cache holds the last of them that fit."""
    index, sent = index_of(capacity), list[list[int]]()
    quarter = capacity / EPOCHS + length
    for number in range(3 * capacity // length):
        sent.append(chain(number, length))
        index.insert(ALICE, sent[-1], W[0], now=number)
        sure = sent[-max(1, int((capacity - quarter / 2) // length)) :]
        assert held(index, W[0], [sure[0]]) == [length]
        assert index.holder(W[0]).resident_blocks <= capacity + 1.5 * quarter


def test_the_least_recently_touched_belief_goes_first() -> None:
    index, chains = index_of(400), [chain(seed, 10) for seed in range(60)]
    for number, each in enumerate(chains):
        index.insert(ALICE, each, W[0], now=number)
        index.insert(ALICE, chains[0], W[0], now=number)
    blocks = held(index, W[0], chains)
    assert blocks[0] == 10
    assert blocks[1:10] == [0] * 9
    assert blocks[-20:] == [10] * 20


def test_one_worker_full_says_nothing_of_another() -> None:
    index, chains = index_of(100), [chain(seed, 10) for seed in range(30)]
    index.insert(ALICE, chains[0], W[1], now=0)
    for number, each in enumerate(chains):
        index.insert(ALICE, each, W[0], now=number)
    assert index.matches(ALICE, chains[0]) == [(W[1], 10)]
    assert index.history_depth(ALICE, chains[0], W[0]) == 10


def test_without_a_known_capacity_belief_is_bounded_by_the_index_alone() -> None:
    index, chains = index_of(float("inf")), [chain(seed, 10) for seed in range(500)]
    for number, each in enumerate(chains):
        index.insert(ALICE, each, W[0], now=number)
    assert held(index, W[0], chains) == [10] * 500


def test_replies_take_room_too() -> None:
    index, first = index_of(100), chain(1, 10)
    index.insert(ALICE, first, W[0], now=0)
    for number in range(10):
        index.occupy(W[0], 12.5, now=number)
    assert held(index, W[0], [first]) == [0]


def test_a_wiped_worker_has_all_its_room_again() -> None:
    index = index_of(100)
    for seed in range(30):
        index.insert(ALICE, chain(seed, 10), W[0], now=seed)
    assert index.holder(W[0]).free_blocks == 0
    index.wipe(W[0])
    assert index.holder(W[0]).free_blocks == 100


def test_the_reuse_of_the_oldest_blocks_is_measured() -> None:
    idle, busy = index_of(100), index_of(100)
    precious = chain(9999, 20)
    for seed in range(200):
        idle.insert(ALICE, chain(seed, 5), W[0], now=seed)
        busy.insert(ALICE, chain(seed % 8, 5), W[0], now=seed)
        busy.insert(ALICE, precious, W[0], now=seed)
        if seed % 8 == 0:
            busy.insert(ALICE, chain(1000 + seed, 10), W[0], now=seed)
    assert idle.holder(W[0]).reuse < 0.05
    assert busy.holder(W[0]).reuse > 5 * idle.holder(W[0]).reuse


def test_copies_elsewhere_and_idle_time_make_an_eviction_cheaper() -> None:
    alone, copied = index_of(100), index_of(100)
    for seed in range(12):
        for index in (alone, copied):
            if index is copied:
                index.insert(ALICE, chain(seed, 10), W[1], now=seed)
            index.insert(ALICE, chain(seed, 10), W[0], now=seed)
    assert copied.holder(W[0]).tail_reuse(0.5, now=12.0) == 0 < alone.holder(W[0]).tail_reuse(0.5, now=12.0)
    assert alone.holder(W[0]).tail_reuse(0.5, now=3600.0) < 0.2 * alone.holder(W[0]).tail_reuse(0.5, now=12.0)


def test_masks_stay_narrow_however_often_epochs_change() -> None:
    index = index_of(40)
    for number in range(4000):
        index.insert(ALICE, chain(number % 700, 8), W[number % 3], now=number)
        bits = len(W) * (EPOCHS + 3)
        assert index._beliefs.width <= 2 * (bits + DEAD_BITS_MAX) + DEAD_BITS_MAX * 3


steps = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(1, 12)), max_size=150)


@settings(max_examples=40, deadline=None)
@given(steps, st.integers(20, 60), st.sampled_from([60, 100_000]))
def test_belief_is_bounded_prefix_closed_and_counted(
    done: list[tuple[int, int, int]], capacity: int, entries_max: int
) -> None:
    """Under any interleaving, a small index and reused bits included: never more than was sent, nor than fits."""
    index = index_of(capacity, entries_max=entries_max)
    chains = [chain(seed // 3, 4) + chain(100 + seed, 8) for seed in range(31)]
    sent: dict[WorkerId, set[int]] = {worker: set() for worker in W}
    for number, (worker, which, length) in enumerate(done):
        index.insert(ALICE, chains[which][:length], W[worker], now=number)
        sent[W[worker]].update(chains[which][:length])
        if number % 7 == 0:
            # Rotate by force, so that bits are retired, swept and used again within the run.
            for _ in range(20):
                index.wipe(W[2])
    for worker in W:
        believed: set[int] = set()
        for each in chains:
            believed.update(each[: dict(index.matches(ALICE, each)).get(worker, 0)])
        assert believed <= sent[worker]
        # Half of the oldest epoch and all of the current one, each longer by what overfilled it.
        assert len(believed) <= capacity + 1.5 * (capacity / EPOCHS + 12)
        assert len(believed) <= index.holder(worker).resident_blocks + 1e-6
    assert index.size_bytes == sum(tree.size_bytes for tree in index._trees.values()) <= entries_max * BYTES_A_BLOCK


def test_the_table_takes_capacities_from_the_snapshot() -> None:
    scene = Scene(snapshot(workers=1, capacity_tokens=12_800))
    first = prompt(1, 5120)
    scene.serve(first)
    assert scene.choose(first).matched_blocks == 10
    for seed in range(2, 16):
        scene.serve(prompt(seed, 5120))
    assert scene.choose(first).matched_blocks == 0
    assert scene.table._fleet.workers[worker_id(0)].free_tokens == 0

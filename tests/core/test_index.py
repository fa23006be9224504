"""The approximate prefix index: C13, C17, S23."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from router.contract.ids import TenantId, WorkerId
from router.core.beliefs import DEAD_BITS_MAX
from router.core.index import BYTES_PER_ENTRY, PrefixIndex

ALICE, CHARLIE = TenantId("alice"), TenantId("charlie")
W = [WorkerId(f"p/w{number}") for number in range(5)]


def new_index(*, entries_max: int = 100_000, share: float = 0.5) -> PrefixIndex:
    index = PrefixIndex(bytes_max=entries_max * BYTES_PER_ENTRY, tenant_share_max=share)
    for worker in W:
        index.add_worker(worker)
    return index


def chain(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.getrandbits(128) for _ in range(length)]


def branch(trunk: list[int], at: int, seed: int, length: int) -> list[int]:
    return trunk[:at] + chain(seed, length - at)


def test_it_finds_the_longest_match_of_each_worker() -> None:
    index, trunk = new_index(), chain(1, 100)
    index.insert(ALICE, trunk, W[0], now=0)
    index.insert(ALICE, trunk[:40], W[1], now=0)
    index.insert(ALICE, branch(trunk, 7, 2, 50), W[2], now=0)
    assert index.matches(ALICE, trunk) == [(W[0], 100), (W[1], 40), (W[2], 7)]
    assert index.matches(ALICE, chain(9, 10)) == []


def test_it_keeps_tenants_apart() -> None:
    index, trunk = new_index(), chain(1, 10)
    index.insert(ALICE, trunk, W[0], now=0)
    assert index.matches(CHARLIE, trunk) == []


def test_c13_duplicates_change_nothing() -> None:
    index, trunk = new_index(), chain(1, 30)
    index.insert(ALICE, trunk, W[0], now=0)
    blocks, matches = index.blocks, index.matches(ALICE, trunk)
    for _ in range(5):
        index.insert(ALICE, trunk, W[0], now=0)
    assert (index.blocks, index.matches(ALICE, trunk)) == (blocks, matches)


def test_c17_eviction_takes_tails_and_never_a_head_that_is_in_use() -> None:
    index, head = new_index(entries_max=3000, share=1.0), chain(1, 20)
    for number in range(400):
        index.insert(ALICE, head + chain(100 + number, 20), W[0], now=number)
        assert index.history_depth(ALICE, head, W[0]) == 20
    assert index.evicted_at(ALICE) is not None
    assert index.matches(ALICE, head + chain(100, 20)) == [(W[0], 20)]


def test_a_wiped_worker_matches_nothing_and_others_still_do() -> None:
    index, trunk = new_index(), chain(1, 30)
    for worker in W[:2]:
        index.insert(ALICE, trunk, worker, now=0)
    index.wipe(W[0])
    assert index.matches(ALICE, trunk) == [(W[1], 30)]
    assert index.history_depth(ALICE, trunk, W[0]) == 30
    index.insert(ALICE, trunk[:3], W[0], now=1)
    assert index.matches(ALICE, trunk) == [(W[1], 30), (W[0], 3)]


def test_a_worker_that_left_and_came_back_starts_empty() -> None:
    index, trunk = new_index(), chain(1, 30)
    index.insert(ALICE, trunk, W[0], now=0)
    index.remove_worker(W[0])
    index.add_worker(W[0])
    assert index.matches(ALICE, trunk) == []
    assert index.history_depth(ALICE, trunk, W[0]) == 0


def test_bits_of_wiped_workers_are_used_again() -> None:
    index, trunk = new_index(), chain(1, 30)
    for round_ in range(10 * DEAD_BITS_MAX):
        index.insert(ALICE, trunk, W[0], now=round_)
        index.wipe(W[0])
        assert index.matches(ALICE, trunk) == []
    assert index._beliefs.width <= 2 * (2 * len(W) + DEAD_BITS_MAX) + 2
    index.insert(ALICE, trunk, W[1], now=0)
    assert index.matches(ALICE, trunk) == [(W[1], 30)]


def test_a_refused_request_is_not_believed_but_stays_history() -> None:
    index, trunk = new_index(), chain(1, 30)
    index.insert(ALICE, trunk[:10], W[0], now=0)
    index.insert(ALICE, trunk, W[0], now=0)
    index.disbelieve(ALICE, trunk, W[0], from_block=10)
    assert index.matches(ALICE, trunk) == [(W[0], 10)]
    assert index.history_depth(ALICE, trunk, W[0]) == 30


def test_s23_a_flood_of_unique_prefixes_stays_within_the_cap_and_spares_others() -> None:
    index = new_index(entries_max=6000)
    precious = [chain(5000 + number, 10) for number in range(50)]
    for trunk in precious:
        index.insert(CHARLIE, trunk, W[1], now=0)
    for number in range(5000):
        index.insert(ALICE, chain(number, 8), W[0], now=number)
        index.note_leaf(ALICE, chain(number, 8)[-1], 9)
        assert index.size_bytes <= 6000 * BYTES_PER_ENTRY
    assert all(index.matches(CHARLIE, trunk) == [(W[1], 10)] for trunk in precious)
    assert index.evicted_at(CHARLIE) is None
    assert index.evicted_at(ALICE) is not None


def test_s23_many_tenants_together_stay_within_the_cap() -> None:
    index = new_index(entries_max=3000)
    for number in range(3000):
        index.insert(TenantId(f"t{number % 40}"), chain(number, 8), W[0], now=number)
        assert index.size_bytes <= 3000 * BYTES_PER_ENTRY


def test_tenants_that_are_gone_leave_nothing() -> None:
    index = new_index()
    index.insert(ALICE, chain(1, 50), W[0], now=0)
    index.keep_tenants({CHARLIE})
    for number in range(20):
        index.insert(CHARLIE, chain(number, 8), W[0], now=0)
    assert index.blocks == 160
    assert index.size_bytes == 160 * BYTES_PER_ENTRY
    assert index.matches(ALICE, chain(1, 50)) == []


def test_the_largest_answer_that_ended_in_a_block_is_kept() -> None:
    index, trunk = new_index(), chain(1, 5)
    index.insert(ALICE, trunk, W[0], now=0)
    index.note_leaf(ALICE, trunk[-1], 700)
    index.note_leaf(ALICE, trunk[-1], 300)
    assert index.leaf_tokens(ALICE, trunk[-1]) == 700
    index.note_leaf(ALICE, 12345, 9)
    assert index.leaf_tokens(ALICE, 12345) == 0


operations = st.lists(
    st.tuples(st.sampled_from(["insert", "wipe"]), st.integers(0, 4), st.integers(0, 3), st.integers(0, 24)),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(operations, st.integers(0, 3), st.integers(1, 24))
def test_matches_agree_with_a_plain_model(done: list[tuple[str, int, int, int]], seed: int, length: int) -> None:
    """Chains of four families that part at block 6; the model keeps sets of blocks for each worker."""
    trunk = chain(77, 6)
    families = [trunk + chain(100 + number, 18) for number in range(4)]
    index, held = new_index(), {worker: set() for worker in W}
    for action, worker, family, size in done:
        if action == "wipe":
            index.wipe(W[worker])
            held[W[worker]] = set()
        else:
            index.insert(ALICE, families[family][:size], W[worker], now=0)
            held[W[worker]].update(families[family][:size])
    wanted = families[seed][:length]
    expected = {}
    for worker, blocks in held.items():
        depth = next((at for at, block in enumerate(wanted) if block not in blocks), len(wanted))
        if depth:
            expected[worker] = depth
    found = index.matches(ALICE, wanted)
    assert dict(found) == expected
    assert [depth for _, depth in found] == sorted((depth for _, depth in found), reverse=True)


def test_blocks_that_were_disbelieved_under_a_longer_chain_are_believed_when_sent_again() -> None:
    index, trunk = new_index(), chain(1, 20)
    index.insert(ALICE, trunk[:5], W[0], now=0)
    index.insert(ALICE, trunk, W[0], now=0)
    index.disbelieve(ALICE, trunk[:5], W[0], from_block=3)
    assert index.matches(ALICE, trunk[:5]) == [(W[0], 3)]
    index.insert(ALICE, trunk, W[0], now=0)
    assert index.matches(ALICE, trunk[:5]) == [(W[0], 5)]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(("insert", "insert", "insert", "refuse", "wipe")),
            st.integers(0, 2),
            st.integers(0, 3),
            st.integers(1, 40),
        ),
        min_size=5,
        max_size=40,
    )
)
def test_touching_only_what_is_not_settled_changes_nothing(steps: list[tuple[str, int, int, int]]) -> None:
    """Against an index that touches every block: few entries and small caches, so that generations and epochs turn."""
    trunk = chain(1, 40)
    chains = [trunk, branch(trunk, 12, 2, 40), branch(trunk, 25, 3, 40), chain(4, 40)]
    settled, whole = new_index(entries_max=600), new_index(entries_max=600)
    for index in (settled, whole):
        for worker in W:
            index.set_capacity(worker, 60)
    for now, (step, worker, which, length) in enumerate(steps):
        hashes = chains[which][:length]
        for index in (settled, whole):
            for holder in [index.holder(each) for each in W] if index is whole else []:
                assert holder is not None
                holder.doubted = holder.current
            if step == "insert":
                index.insert(ALICE, hashes, W[worker], now=now)
            elif step == "refuse":
                index.insert(ALICE, hashes, W[worker], now=now)
                index.disbelieve(ALICE, hashes, W[worker], from_block=length // 2)
            else:
                index.wipe(W[worker])
        for every in chains:
            assert settled.matches(ALICE, every) == whole.matches(ALICE, every)
            for each in W[:3]:
                assert settled.history_depth(ALICE, every, each) == whole.history_depth(ALICE, every, each)

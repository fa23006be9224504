"""The index against plain sets and counters."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.contract.ids import WorkerId
from router.core.exact import block_index
from router.core.exact.block_index import BlockIndex, Holder, Match, Resident, Tier
from tests.exact_index.naive import content_of

A, B, C = (Holder(WorkerId(f"p/{name}")) for name in "abc")
MIB = 1024 * 1024


def index_of(*holders: Holder, bytes_max: int = MIB, until: float = 1e9) -> BlockIndex:
    index = BlockIndex(bytes_max=bytes_max)
    for holder in holders:
        index.add(holder)
        index.renew(holder, until=until)
    return index


def chain(seed: int, length: int) -> list[int]:
    return [(seed * 1_000_003 + at) * 0x9E3779B97F4A7C15 % 2**64 for at in range(length)]


def test_it_finds_the_longest_prefix_of_each_holder() -> None:
    index, blocks = index_of(A, B, C), chain(1, 100)
    index.store(A, Tier.DEVICE, blocks)
    index.store(B, Tier.DEVICE, blocks[:37])
    assert index.matches(blocks, now=0) == {A: Match(100), B: Match(37)}
    assert list(index.matches(blocks, now=0)) == [A, B]
    assert index.matches(chain(1, 20) + chain(2, 20), now=0) == {A: Match(20), B: Match(20)}
    assert index.matches(chain(2, 20), now=0) == index.matches([], now=0) == {}
    assert index.depth(C, blocks, now=0) == Match(0)


def test_a_block_stored_thrice_is_gone_after_three_removals_c13() -> None:
    index = index_of(A)
    for _ in range(3):
        index.store(A, Tier.DEVICE, [7])
    assert index.resident(A.worker) == Resident(1, 0, 0)
    assert [index.remove(A, Tier.DEVICE, [7]), len(index.matches([7], now=0))] == [0, 1]
    assert [index.remove(A, Tier.DEVICE, [7]), len(index.matches([7], now=0))] == [0, 1]
    assert [index.remove(A, Tier.DEVICE, [7]), len(index.matches([7], now=0))] == [0, 0]
    assert index.remove(A, Tier.DEVICE, [7]) == 1
    assert index.size_bytes == 0


def test_a_chain_evicted_from_its_tail_still_matches_by_its_head_c17() -> None:
    index, blocks = index_of(A), chain(1, 64)
    index.store(A, Tier.DEVICE, blocks)
    for left in range(63, -1, -1):
        index.remove(A, Tier.DEVICE, [blocks[left]])
        assert index.matches(blocks, now=0) == ({A: Match(left)} if left else {})


def test_a_match_continues_in_the_further_tiers() -> None:
    index, blocks = index_of(A, B), chain(1, 30)
    index.store(A, Tier.DEVICE, blocks[:10])
    index.store(A, Tier.HOST, blocks[:18])
    index.store(A, Tier.REMOTE, blocks[18:25])
    index.store(B, Tier.HOST, blocks[:5])
    assert index.matches(blocks, now=0) == {A: Match(10, 8, 7), B: Match(0, 5, 0)}
    assert index.depth(A, blocks[:12], now=0) == Match(10, 2, 0)
    assert index.resident(A.worker) == Resident(10, 18, 7)


def test_ranks_are_holders_of_their_own() -> None:
    second, blocks = Holder(A.worker, 1), chain(1, 8)
    index = index_of(A)
    index.store(A, Tier.DEVICE, blocks)
    index.add(second)
    assert not index.is_exact(A.worker, now=0), "one rank is not known yet"
    index.renew(second, until=9)
    index.store(second, Tier.DEVICE, blocks[:3])
    assert index.is_exact(A.worker, now=0)
    assert index.matches(blocks, now=0) == {A: Match(8), second: Match(3)}
    assert index.resident(A.worker) == Resident(11, 0, 0)


def test_a_lease_that_ran_out_hides_the_holder_until_it_is_renewed() -> None:
    index = index_of(A, until=10.0)
    index.store(A, Tier.DEVICE, [1])
    assert index.matches([1], now=9.9)
    assert index.is_exact(A.worker, now=9.9)
    assert not index.matches([1], now=10.0)
    assert not index.is_exact(A.worker, now=10.0)
    assert index.depth(A, [1], now=10.0) is None
    index.renew(A, until=20.0)
    assert index.matches([1], now=10.1) == {A: Match(1)}
    index.suspend(A)
    assert not index.matches([1], now=10.1)


def test_an_entry_names_holder_tier_and_lease() -> None:
    index = index_of(A, until=10.0)
    index.store(A, Tier.HOST, [1])
    assert index.entries(1) == [(A, Tier.HOST, 10.0)]
    index.suspend(A)
    assert index.entries(1) == [(A, Tier.HOST, None)]


def test_a_wiped_holder_is_forgotten_at_once_and_swept_later() -> None:
    index, blocks = index_of(A, B), chain(1, 50)
    index.store(A, Tier.DEVICE, blocks)
    index.store(B, Tier.DEVICE, blocks[:10])
    index.wipe(A)
    assert index.matches(blocks, now=0) == {B: Match(10)}
    assert index.resident(A.worker) == Resident(0, 0, 0)
    while index.sweep(blocks_max=10):
        pass
    assert index.blocks == 10
    index.renew(A, until=9)
    index.store(A, Tier.DEVICE, blocks[:4])
    assert index.matches(blocks, now=0) == {B: Match(10), A: Match(4)}


def test_an_emptied_cache_keeps_its_lease() -> None:
    index = index_of(A)
    index.store(A, Tier.DEVICE, [1])
    index.empty(A)
    assert index.is_exact(A.worker, now=0) and not index.matches([1], now=0)


def test_a_discarded_holder_leaves_nothing() -> None:
    index = index_of(A, B)
    index.store(A, Tier.DEVICE, chain(1, 20))
    index.discard(A)
    while index.sweep(blocks_max=100):
        pass
    assert (index.blocks, index.resident(A.worker), index.is_exact(A.worker, now=0)) == (0, Resident(0, 0, 0), False)
    assert not index.store(A, Tier.DEVICE, [1])


def test_full_it_gives_up_the_largest_holder_and_stays_below_its_bound() -> None:
    index = index_of(A, B, bytes_max=1000 * block_index.BYTES_PER_ENTRY)
    honest = chain(1, 100)
    index.store(B, Tier.DEVICE, honest)
    largest = 0
    for at in range(200):
        index.store(A, Tier.DEVICE, chain(10 + at, 50))
        largest = max(largest, index.size_bytes)
        index.sweep(blocks_max=1)
    assert largest <= index.bytes_max
    assert index.overflowed(A) and not index.overflowed(B)
    assert index.matches(honest, now=0) == {B: Match(100)}
    assert not index.is_exact(A.worker, now=0)


def test_a_holder_that_begins_again_and_again_keeps_masks_narrow() -> None:
    index = index_of(A, B, bytes_max=16 * MIB)
    index.store(B, Tier.DEVICE, chain(1, 20_000))
    for at in range(1000):
        index.store(A, Tier.DEVICE, [at])
        index.wipe(A)
    assert max(index._holder_of_bit).bit_length() <= block_index.DEAD_BITS_MAX + 2
    assert index.matches(chain(1, 20_000), now=0) == {B: Match(20_000)}


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("store"), st.integers(0, 2), st.sampled_from(Tier), st.integers(0, 3), st.integers(1, 12)),
        st.tuples(st.just("evict"), st.integers(0, 2), st.sampled_from(Tier), st.integers(0, 3), st.integers(1, 12)),
        st.tuples(st.just("wipe"), st.integers(0, 2)),
        st.tuples(st.just("sweep"), st.integers(1, 20)),
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=200)
@given(OPERATIONS)
def test_it_equals_a_model_of_plain_counters(operations) -> None:
    holders = (A, B, C)
    index = index_of(*holders)
    chains = [chain(1, 12), chain(2, 12), chain(1, 6) + chain(3, 6), chain(4, 12)]
    universe = {block for each in chains for block in each}
    model: dict[Holder, Counter] = {holder: Counter() for holder in holders}
    for name, *arguments in operations:
        if name == "sweep":
            index.sweep(blocks_max=arguments[0])
            continue
        holder = holders[arguments[0]]
        if name == "wipe":
            index.wipe(holder)
            index.renew(holder, until=1e9)
            model[holder].clear()
            continue
        _, tier, which, length = arguments
        if name == "store":
            blocks = chains[which][:length]
            assert index.store(holder, tier, blocks)
            model[holder].update((tier, block) for block in blocks)
        else:
            blocks = chains[which][length - 1 :]
            expected = sum(model[holder][tier, block] == 0 for block in blocks)
            assert index.remove(holder, tier, blocks) == expected
            model[holder] = +(model[holder] - Counter((tier, block) for block in blocks))
    for holder in holders:
        assert content_of(index, holder, universe) == set(model[holder])
        resident = Resident(*(sum(held == tier for held, _ in model[holder]) for tier in Tier))
        assert index.resident_of(holder) == resident
    assert index.size_bytes >= sum(len(set(model[holder])) for holder in holders[:1])


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=40), st.integers(1, 40))
def test_every_prefix_closed_content_is_matched_to_the_block(depths, length) -> None:
    holders = [Holder(WorkerId(f"p/w{at}")) for at in range(len(depths))]
    index, blocks = index_of(*holders), chain(1, 40)
    for holder, depth in zip(holders, depths, strict=True):
        index.store(holder, Tier.DEVICE, blocks[:depth])
    expected = {holder: Match(min(depth, length)) for holder, depth in zip(holders, depths, strict=True) if depth}
    found = index.matches(blocks[:length], now=0)
    assert found == expected
    assert [match.blocks for match in found.values()] == sorted((m.blocks for m in expected.values()), reverse=True)
    for holder, depth in zip(holders, depths, strict=True):
        assert index.depth(holder, blocks[:length], now=0) == Match(min(depth, length))


@pytest.mark.parametrize("bytes_max", [1, 4096, 64 * MIB])
def test_any_bound_gives_a_working_index(bytes_max: int) -> None:
    index = index_of(A, bytes_max=bytes_max)
    assert index.store(A, Tier.DEVICE, [2**64 - 1, 0])
    assert index.matches([2**64 - 1, 0], now=0) == {A: Match(2)}


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(("store", "wipe", "suspend")), st.integers(0, 5), st.integers(1, 30)), max_size=20
    ),
    st.sets(st.integers(0, 2)),
    st.sampled_from([(Tier.DEVICE,), (Tier.DEVICE, Tier.HOST)]),
)
def test_matches_by_worker_are_the_matches_of_the_asked_workers(
    steps: list[tuple[str, int, int]], asked: set[int], tiers: tuple[Tier, ...]
) -> None:
    """Three workers of two ranks each."""
    index, chain = BlockIndex(bytes_max=1 << 22), list(range(1000, 1030))
    holders = [Holder(WorkerId(f"p/w{number // 2}"), number % 2) for number in range(6)]
    for holder in holders:
        index.add(holder)
        index.renew(holder, until=10.0)
    workers = {WorkerId(f"p/w{number}") for number in asked}
    for at, (step, number, blocks) in enumerate(steps):
        if step == "store":
            index.store(holders[number], tiers[at % len(tiers)], chain[:blocks])
            index.renew(holders[number], until=10.0)
        elif step == "wipe":
            index.wipe(holders[number])
        else:
            index.suspend(holders[number])
        expected = [
            (holder.worker, match)
            for holder, match in index.matches(chain, now=0.0).items()
            if holder.worker in workers
        ]
        groups = index.worker_matches(chain, index.places_of(workers), now=0.0)
        found = [(worker, match) for names, match in groups for worker in names]
        assert sorted(found) == sorted(expected)
        assert [match.blocks for _, match in groups] == sorted((match.blocks for _, match in groups), reverse=True)


def test_places_are_told_anew_when_a_holder_begins_again() -> None:
    index, holder = BlockIndex(bytes_max=1 << 22), Holder(WorkerId("p/w0"))
    index.add(holder)
    index.renew(holder, until=10.0)
    index.store(holder, Tier.DEVICE, [1, 2, 3])
    version, places = index.places_version, index.places_of([holder.worker])
    assert index.worker_matches([1, 2], places, now=0.0) == [((holder.worker,), Match(2))]
    index.wipe(holder)
    assert index.worker_matches([1, 2], places, now=0.0) == []
    index.store(holder, Tier.DEVICE, [1])
    index.renew(holder, until=10.0)
    assert index.places_version > version
    assert index.worker_matches([1, 2], index.places_of([holder.worker]), now=0.0) == [((holder.worker,), Match(1))]


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 70), st.sampled_from([0, 0, 40, 64])), min_size=1, max_size=30
    ),
    st.integers(1, 70),
)
def test_what_a_prompt_matched_before_changes_nothing_of_what_it_matches(
    acts: list[tuple[int, int, int]], length: int
) -> None:
    holders = [Holder(WorkerId(f"p/{number}")) for number in range(6)]
    index, held = index_of(*holders), dict.fromkeys(range(6), 0)
    common = chain(1, 70)
    for number, depth, parted in acts:
        if depth > held[number]:
            index.store(holders[number], Tier.DEVICE, common[held[number] : depth])
        else:
            index.remove(holders[number], Tier.DEVICE, common[depth : held[number]])
        held[number] = depth
        asked = (common[:parted] + chain(2, 70))[:length] if parted else common[:length]
        shared = min(length, parted or 70)
        groups = index.worker_matches(asked, index.places_of(each.worker for each in holders), now=0.0)
        found = {worker: match.blocks for workers, match in groups for worker in workers}
        wanted = {holders[each].worker: min(blocks, shared) for each, blocks in held.items() if min(blocks, shared)}
        assert found == wanted


def test_heads_whose_match_lengths_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_index, "LAST_DEPTHS_MAX", 8)
    index = index_of(A)
    for seed in range(50):
        index.store(A, Tier.DEVICE, chain(seed, 3))
        index.worker_matches(chain(seed, 4), index.places_of([A.worker]), now=0.0)
        assert len(index._last_depths) <= 8

"""The approximate prefix index: C13, C17, S23."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from router.contract.ids import TenantId, WorkerId
from router.core.beliefs import DEAD_BITS_MAX, Beliefs, Holder
from router.core.fingerprint import common_blocks
from router.core.index import FREE_BYTES, PrefixIndex

ALICE, CHARLIE = TenantId("alice"), TenantId("charlie")
W = [WorkerId(f"p/w{number}") for number in range(5)]
BYTES_A_BLOCK = 128


def new_index(*, entries_max: int = 100_000, share: float = 0.5) -> PrefixIndex:
    index = PrefixIndex(bytes_max=entries_max * BYTES_A_BLOCK, tenant_share_max=share)
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
    index, head = new_index(entries_max=800, share=1.0), chain(1, 20)
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
        index.note_leaf(ALICE, chain(number, 8), 9)
        assert index.size_bytes <= 6000 * BYTES_A_BLOCK
    assert all(index.matches(CHARLIE, trunk) == [(W[1], 10)] for trunk in precious)
    assert index.evicted_at(CHARLIE) is None
    assert index.evicted_at(ALICE) is not None


def test_s23_many_tenants_together_stay_within_the_cap() -> None:
    index = new_index(entries_max=3000)
    for number in range(3000):
        index.insert(TenantId(f"t{number % 40}"), chain(number, 8), W[0], now=number)
        assert index.size_bytes <= 3000 * BYTES_A_BLOCK


def test_tenants_that_are_gone_leave_nothing() -> None:
    index = new_index()
    index.insert(ALICE, chain(1, 50), W[0], now=0)
    index.keep_tenants({CHARLIE})
    for number in range(20):
        index.insert(CHARLIE, chain(number, 8), W[0], now=0)
    assert index.blocks == 160
    assert not index._gone
    assert index.matches(ALICE, chain(1, 50)) == []


def test_the_largest_answer_that_ended_in_a_block_is_kept() -> None:
    index, trunk = new_index(), chain(1, 5)
    index.insert(ALICE, trunk, W[0], now=0)
    for tokens in (700, 300):
        index.note_leaf(ALICE, trunk, tokens)
    assert index.leaf_tokens(ALICE, trunk) == index.leaf_tokens(ALICE, branch(trunk, 5, 3, 9)) == 700
    index.note_leaf(ALICE, trunk[:3], 900)
    assert index.leaf_tokens(ALICE, trunk[:2]) == 0
    assert index.leaf_tokens(ALICE, trunk[:3]) == index.leaf_tokens(ALICE, trunk) == 900
    index.note_leaf(ALICE, chain(9, 4), 9)
    assert index.leaf_tokens(ALICE, chain(9, 4)) == 0


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


class PlainIndex:
    """Every block by itself, nothing ever dropped: what the index does with segments, block by block."""

    def __init__(self, capacity_blocks: float) -> None:
        self.beliefs = Beliefs()
        self.masks: dict[int, int] = {}
        for worker in W:
            self.beliefs.add(worker)
            self.holder(worker).capacity_blocks = capacity_blocks

    def holder(self, worker: WorkerId) -> Holder:
        holder = self.beliefs.get(worker)
        assert holder is not None
        return holder

    def insert(self, hashes: list[int], worker: WorkerId, *, now: float) -> None:
        holder, beliefs = self.holder(worker), self.beliefs
        current = holder.current
        for block in hashes:
            mask = self.masks.get(block)
            self.masks[block] = ((mask or 0) & beliefs.alive & ~holder.own) | holder.history | current.bit
            if mask is not None and mask & current.bit:
                continue
            current.blocks += 1
            if mask is None:
                continue
            elsewhere = mask & beliefs.believed & ~holder.own != 0
            current.replicas += elsewhere
            if not mask & holder.own:
                holder.restored += not elsewhere
            for place, epoch in enumerate(holder.epochs):
                if mask & epoch.bit:
                    epoch.blocks = max(0.0, epoch.blocks - 1)
                    epoch.replicas = max(0, epoch.replicas - elsewhere)
                    epoch.reused += place == 0
        beliefs.settle(holder, now=now)

    def refuse(self, hashes: list[int], worker: WorkerId, from_block: int) -> None:
        own = self.holder(worker).own
        for block in hashes[from_block:]:
            self.beliefs.lost(self.masks[block] & own, 1)
            self.masks[block] &= ~own

    def depth(self, hashes: list[int], wanted: int) -> int:
        return next((at for at, block in enumerate(hashes) if not self.masks.get(block, 0) & wanted), len(hashes))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(("insert", "insert", "insert", "insert", "refuse", "wipe")),
            st.integers(0, 2),
            st.integers(0, 3),
            st.integers(1, 40),
        ),
        min_size=5,
        max_size=60,
    ),
    st.sampled_from([60, 200, 1_000]),
)
def test_segments_are_what_their_blocks_would_be(steps: list[tuple[str, int, int, int]], capacity: int) -> None:
    """With small caches, so that epochs turn: the same matches, histories and measurements."""
    trunk = chain(1, 40)
    chains = [trunk, branch(trunk, 12, 2, 40), branch(trunk, 25, 3, 40), chain(4, 40)]
    index, plain = new_index(), PlainIndex(capacity)
    for worker in W:
        index.set_capacity(worker, capacity)
    for now, (step, number, which, length) in enumerate(steps):
        hashes, worker = chains[which][:length], W[number]
        if step == "wipe":
            index.wipe(worker)
            plain.beliefs.wipe(worker)
        else:
            index.insert(ALICE, hashes, worker, now=now)
            plain.insert(hashes, worker, now=now)
        if step == "refuse":
            # The last of these chains to be sent: nothing of it goes on beyond.
            beyond = any(plain.depth(each[: length + 1], -1) > length for each in chains if each[:length] == hashes)
            if not beyond:
                index.disbelieve(ALICE, hashes, worker, from_block=length - 1)
                plain.refuse(hashes, worker, length - 1)
        for every in chains:
            found = dict(index.matches(ALICE, every))
            for each in W:
                assert found.get(each, 0) == plain.depth(every, plain.holder(each).own)
                assert index.history_depth(ALICE, every, each) == plain.depth(every, plain.holder(each).history)
        for each in W:
            holder, other = index.holder(each), plain.holder(each)
            assert holder is not None
            assert (holder.resident_blocks, holder.reuse) == (other.resident_blocks, other.reuse)
            assert [epoch.reused for epoch in holder.epochs] == [epoch.reused for epoch in other.epochs]
            assert [epoch.replicas for epoch in holder.epochs] == [epoch.replicas for epoch in other.epochs]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30), st.integers(1, 40)), max_size=200))
def test_a_full_index_forgets_whole_tails_oldest_first_and_counts_what_it_holds(
    sent: list[tuple[int, int, int]],
) -> None:
    index, trunk = new_index(entries_max=120, share=1.0), chain(1, 10)
    chains = [branch(trunk, number % 11, 100 + number, 40) for number in range(31)]
    known: dict[int, int] = {}
    for now, (worker, which, length) in enumerate(sent):
        hashes = chains[which][:length]
        index.insert(ALICE, hashes, W[worker], now=now)
        index.note_leaf(ALICE, hashes, 100 + length)
        assert index.size_bytes <= 120 * BYTES_A_BLOCK
        assert index.known_depth(ALICE, list(hashes)) == length
        assert index.leaf_tokens(ALICE, list(hashes)) >= 100 + length
        for each, every in enumerate(chains):
            depth = index.known_depth(ALICE, list(every))
            assert depth <= max(known.get(each, 0), common_blocks(every, hashes))
            known[each] = depth
    assert index.blocks == len(
        {block for number, every in enumerate(chains) for block in every[: known.get(number, 0)]}
    )


def test_a_steady_set_of_long_chains_takes_no_more_memory_however_often_it_is_sent() -> None:
    index, chains = new_index(), [chain(seed, 800) for seed in range(40)]
    sizes = []
    for round_ in range(60):
        for number, each in enumerate(chains):
            index.insert(ALICE, each, W[(number + round_ // 20) % 5], now=round_)
        sizes.append(index.size_bytes)
    assert index.blocks == 40 * 800
    assert sizes == [sizes[0]] * 60


def test_a_tenant_that_is_gone_is_freed_in_portions() -> None:
    index = new_index()
    for number in range(2000):
        index.insert(ALICE, chain(number, 8), W[0], now=0)
    size = index.size_bytes
    index.keep_tenants({CHARLIE})
    assert (index.blocks, index.size_bytes) == (0, size)
    portions = []
    while index._gone:
        index.insert(CHARLIE, chain(1, 4), W[0], now=1)
        portions.append(size - index.size_bytes)
        size = index.size_bytes
    assert max(portions) <= FREE_BYTES + 4096
    holder = index.holder(W[0])
    assert holder is not None
    assert (index.blocks, holder.resident_blocks) == (4, 4)

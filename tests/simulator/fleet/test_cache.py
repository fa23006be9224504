"""A worker's block pool against one that looks at every block by itself."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.fleet.cache import PrefixCache
from simulator.fleet.names import BlockName

CAPACITY_BLOCKS = 40
LENGTH = 24


class PlainCache:
    """Reference counts and an order of release, block by block."""

    def __init__(self) -> None:
        self.references: dict[BlockName, int] = {}
        self.free: OrderedDict[BlockName, None] = OrderedDict()
        self.blank = CAPACITY_BLOCKS
        self.evictions = 0

    def longest_prefix(self, chain: list[BlockName], limit: int) -> int:
        known = [name in self.references or name in self.free for name in chain[:limit]]
        return next((at for at, is_known in enumerate(known) if not is_known), len(known))

    def unused(self, chain: list[BlockName], count: int) -> int:
        return sum(name in self.free for name in chain[:count])

    def pin(self, chain: list[BlockName], count: int) -> None:
        for name in chain[:count]:
            self.references[name] = self.references.get(name, 0) + 1
            self.free.pop(name, None)

    def allocate(self, count: int) -> None:
        for _ in range(count):
            if self.blank:
                self.blank -= 1
            else:
                self.free.popitem(last=False)
                self.evictions += 1

    def name(self, chain: list[BlockName], first: int, after: int) -> int:
        duplicates = 0
        for name in chain[first:after]:
            duplicates += name in self.references
            self.blank += name in self.free
            self.pin([name], 1)
        return duplicates

    def release(self, chain: list[BlockName], count: int, nameless: int) -> None:
        for name in reversed(chain[:count]):
            self.references[name] -= 1
            if not self.references[name]:
                del self.references[name]
                self.free[name] = None
        self.blank += nameless


def chains() -> list[list[BlockName]]:
    """They part from each other at several depths."""
    trunk = [BlockName(100 + at) for at in range(LENGTH)]
    parted = [trunk[:at] + [BlockName(1_000 * at + place) for place in range(at, LENGTH)] for at in (2, 9, 10, 23)]
    return [trunk, *parted, [BlockName(9_000_000 + at) for at in range(LENGTH)]]


_STEPS = ["begin", "begin", "name", "name", "end", "end"]
steps = st.lists(st.tuples(st.sampled_from(_STEPS), st.integers(0, 5), st.integers(1, LENGTH)), max_size=80)


@settings(max_examples=200, deadline=None)
@given(steps)
def test_it_is_what_single_blocks_would_be(done: list[tuple[str, int, int]]) -> None:
    """Sequences begin, compute their chains bit by bit, and end in any order; what is not pinned is evicted."""
    cache, plain = PrefixCache(CAPACITY_BLOCKS), PlainCache()
    running: list[list[Any]] = []  # chain, blocks named, duplicates among these
    for step, which, length in done:
        if step == "begin":
            chain = chains()[which][:length]
            hit = cache.longest_prefix(chain, length)
            assert cache.unused(chain, hit) == plain.unused(chain, hit)
            if length - hit > cache.available_blocks - cache.unused(chain, hit):
                continue
            for each in (cache, plain):
                each.pin(chain, hit)
                each.allocate(length - hit)
            running.append([chain, hit, 0])
        elif running and step == "name":
            sequence = running[which % len(running)]
            chain, named, _ = sequence
            upto = min(len(chain), named + length)
            duplicates = cache.name(chain, named, upto)
            assert duplicates == plain.name(chain, named, upto)
            sequence[1:] = [upto, sequence[2] + duplicates]
        elif running:
            chain, named, duplicates = running.pop(which % len(running))
            nameless = len(chain) - named + duplicates
            cache.release(chain, named, nameless=nameless)
            plain.release(chain, named, nameless)
        assert cache.names() == {*plain.references, *plain.free}
        assert cache.resident_blocks == len(cache.names())
        assert (cache.evictions, cache.available_blocks) == (plain.evictions, plain.blank + len(plain.free))
        for every in chains():
            for limit in (LENGTH, LENGTH // 2):
                assert cache.longest_prefix(every, limit) == plain.longest_prefix(every, limit)


def test_a_dead_worker_s_pool_is_blank() -> None:
    cache, chain = PrefixCache(CAPACITY_BLOCKS), chains()[0]
    cache.allocate(LENGTH)
    cache.name(chain, 0, LENGTH)
    cache.clear()
    assert (cache.available_blocks, cache.resident_blocks, cache.longest_prefix(chain, LENGTH)) == (
        CAPACITY_BLOCKS,
        0,
        0,
    )

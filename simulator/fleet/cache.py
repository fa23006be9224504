"""One worker's block pool at trace granularity: named blocks, pins, least-recently-used eviction from chains' tails.

A block's name stands for the whole prefix up to its end, so equal names mean equal content. Three kinds of blocks:

    pinned   named and used by running sequences, or nameless (a tail being filled, a duplicate being computed)
    free     named and unused: may be hit, and is evicted from the least recently used end
    blank    without content

Invariants, kept by every method: pinned + free + blank = capacity, and a chain's parent is never evicted before its
child (`release` frees tails first, and a running sequence holds every name of its chain), so the longest cached prefix
is found by bisection. As sequences hold heads of chains, references only fall along a chain: where they end, too, is
found by bisection, and what is behind is taken or freed in one sweep of C.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from itertools import islice, repeat

from simulator.fleet.names import BlockName


class PrefixCache:
    def __init__(self, capacity_blocks: int) -> None:
        """Raises ValueError for a capacity below one block."""
        if capacity_blocks < 1:
            raise ValueError(f"a worker needs at least one KV block, got {capacity_blocks}")
        self.capacity_blocks = capacity_blocks
        self.evictions = 0
        self._references: dict[BlockName, int] = {}
        self._free: OrderedDict[BlockName, None] = OrderedDict()
        self._blank = capacity_blocks

    @property
    def available_blocks(self) -> int:
        """Blocks that can be allocated: blank ones and unused named ones."""
        return self._blank + len(self._free)

    @property
    def pinned_share(self) -> float:
        """`kv_cache_usage_perc`: held by running sequences only."""
        return 1 - self.available_blocks / self.capacity_blocks

    @property
    def resident_blocks(self) -> int:
        """Named blocks that could be hit."""
        return len(self._references) + len(self._free)

    def names(self) -> set[BlockName]:
        """The blocks that could be hit: O(blocks), to look at."""
        return {*self._references, *self._free}

    def longest_prefix(self, chain: Sequence[BlockName], limit: int) -> int:
        """Leading blocks of the chain, at most `limit`, that are cached: O(log n)."""
        low, high = 0, min(limit, len(chain))
        while low < high:
            middle = (low + high + 1) // 2
            name = chain[middle - 1]
            if name in self._references or name in self._free:
                low = middle
            else:
                high = middle - 1
        return low

    def unused(self, chain: Sequence[BlockName], count: int) -> int:
        """How many of the chain's first `count` blocks, all of them cached, no sequence uses: pinning them takes as
        many available ones. O(log n)."""
        return count - self._held(chain, count, 1)

    def pin(self, chain: Sequence[BlockName], count: int) -> None:
        """Take a reference on the chain's first `count` blocks, all of them cached."""
        references, held = self._references, self._held(chain, count, 1)
        for name in islice(chain, held):
            references[name] += 1
        unused = chain[held:count]
        _do(map(self._free.__delitem__, unused))
        references.update(zip(unused, repeat(1)))

    def allocate(self, count: int) -> None:
        """Take `count` nameless blocks; the caller checked `available_blocks`."""
        blank = min(count, self._blank)
        self._blank -= blank
        self.evictions += count - blank
        evict = self._free.popitem
        for _ in range(count - blank):
            evict(last=False)

    def name(self, chain: Sequence[BlockName], first: int, after: int) -> int:
        """Name allocated blocks as the chain's first … after − 1. How many of these are held already, so that the new
        blocks stay nameless duplicates."""
        references, free, duplicates = self._references, self._free, 0
        for name in chain[first:after]:
            if name in references:
                references[name] += 1
                duplicates += 1
                continue
            if name in free:
                del free[name]
                self._blank += 1
            references[name] = 1
        return duplicates

    def release(self, chain: Sequence[BlockName], count: int, *, nameless: int) -> None:
        """Drop the references on the chain's first `count` blocks, tails first, and `nameless` blocks beside them."""
        references, kept = self._references, self._held(chain, count, 2)
        for name in islice(chain, kept):
            references[name] -= 1
        freed = chain[kept:count][::-1]
        _do(map(references.__delitem__, freed))
        _do(map(self._free.__setitem__, freed, repeat(None)))
        self._blank += nameless

    def _held(self, chain: Sequence[BlockName], count: int, least: int) -> int:
        """Leading blocks of the chain, at most `count`, with so many references: O(log n)."""
        references, low, high = self._references, 0, count
        while low < high:
            middle = (low + high) // 2
            if references.get(chain[middle], 0) >= least:
                low = middle + 1
            else:
                high = middle
        return low

    def clear(self) -> None:
        """The worker died: nothing is cached and nothing pinned."""
        self._references.clear()
        self._free.clear()
        self._blank = self.capacity_blocks


def _do(calls: Iterable[None]) -> None:
    deque(calls, 0)

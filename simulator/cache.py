"""The block pool of one worker: a prefix cache with least-recently-used eviction, as in vLLM's block pool.

    free queue   head = evicted next  [ never whole … released tails … released heads … ]  tail = used last
    by_digest    digest → physical blocks that hold it (several: equal blocks are not merged)

A block is either pinned (references > 0, not in the free queue) or free. A free block keeps its content, and may be
hit again, until it is allocated to someone else; that is an eviction. Invariant, kept by `pin`, `allocate` and
`release`: pinned + free = capacity.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from simulator.events import AllBlocksCleared, KvEvent, removed
from simulator.hashing import BlockDigest, event_hash

RESERVED_BLOCKS = 1
"""vLLM keeps one block as its null block: 512 configured are 511 usable."""


@dataclass(slots=True)
class CacheTimes:
    """Seconds observed since the last `take_times`, for the worker's `kv_block_*` histograms."""

    lifetime_s: list[float] = field(default_factory=list)
    idle_before_evict_s: list[float] = field(default_factory=list)
    reuse_gap_s: list[float] = field(default_factory=list)


class BlockCache:
    def __init__(self, blocks: int) -> None:
        """Raises ValueError for fewer than two blocks (one is reserved)."""
        if blocks <= RESERVED_BLOCKS:
            raise ValueError(f"a worker needs at least {RESERVED_BLOCKS + 1} KV blocks, got {blocks}")
        self.capacity_blocks = blocks - RESERVED_BLOCKS
        self.evictions = 0
        self._digest: list[BlockDigest | None] = [None] * self.capacity_blocks
        self._references = [0] * self.capacity_blocks
        self._stored_at = [0.0] * self.capacity_blocks
        self._used_at = [0.0] * self.capacity_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(self.capacity_blocks))
        self._by_digest: dict[BlockDigest, list[int]] = {}
        self._events: list[KvEvent] = []
        self._times = CacheTimes()

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    @property
    def pinned_share(self) -> float:
        """`kv_cache_usage_perc`: blocks held by running requests only. 0 on an idle worker with a full cache."""
        return 1 - len(self._free) / self.capacity_blocks

    @property
    def resident_blocks(self) -> int:
        """Distinct blocks that could be hit."""
        return len(self._by_digest)

    def longest_prefix(self, digests: Sequence[BlockDigest]) -> list[int]:
        """Physical blocks of the longest cached prefix of the chain."""
        found: list[int] = []
        for digest in digests:
            holders = self._by_digest.get(digest)
            if holders is None:
                break
            found.append(holders[0])
        return found

    def is_free(self, block: int) -> bool:
        return block in self._free

    def pin(self, blocks: Iterable[int], *, now: float) -> None:
        """Take a reference on cached blocks, so that they are not evicted."""
        for block in blocks:
            if self._references[block] == 0:
                del self._free[block]
            self._references[block] += 1
            self._times.reuse_gap_s.append(now - self._used_at[block])
            self._used_at[block] = now

    def allocate(self, count: int, *, now: float) -> list[int]:
        """`count` blocks with one reference each, evicting from the head. The caller checked `free_blocks`."""
        taken: list[int] = []
        for _ in range(count):
            block, _nothing = self._free.popitem(last=False)
            self._evict(block, now)
            self._references[block] = 1
            self._used_at[block] = now
            taken.append(block)
        return taken

    def store(self, block: int, digest: BlockDigest, *, now: float) -> None:
        """Name the content of a pinned block, so that later requests can hit it."""
        self._digest[block] = digest
        self._stored_at[block] = now
        self._by_digest.setdefault(digest, []).append(block)

    def release(self, blocks: Sequence[int], *, now: float) -> None:
        """Drop one reference each. Tails enter the free queue first, so a chain is evicted from its tail; a block that
        was never whole holds nothing to hit and is allocated before all others."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                self._used_at[block] = now
                self._free[block] = None
                if self._digest[block] is None:
                    self._free.move_to_end(block, last=False)

    def clear(self) -> bool:
        """Forget all content (`/reset_prefix_cache`). False and no change while a request is running."""
        if self.free_blocks != self.capacity_blocks:
            return False
        self._digest = [None] * self.capacity_blocks
        self._by_digest.clear()
        self._events.append(AllBlocksCleared())
        return True

    def record(self, event: KvEvent) -> None:
        self._events.append(event)

    def take_events(self) -> list[KvEvent]:
        """Events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def take_times(self) -> CacheTimes:
        times, self._times = self._times, CacheTimes()
        return times

    def _evict(self, block: int, now: float) -> None:
        digest = self._digest[block]
        if digest is None:
            return
        holders = self._by_digest[digest]
        holders.remove(block)
        if not holders:
            del self._by_digest[digest]
        self._digest[block] = None
        self.evictions += 1
        self._times.lifetime_s.append(now - self._stored_at[block])
        self._times.idle_before_evict_s.append(now - self._used_at[block])
        self._events.append(removed(event_hash(digest)))

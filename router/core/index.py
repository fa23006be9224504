"""Approximate prefix index: which worker was sent which prefix, from routing history.

    tenant shard   young  { block hash → mask }   touched since the last rotation
                   old    { block hash → mask }   touched in the rotation before
                   leaves { block hash → tokens } of answered requests that ended there, in two generations too
    mask           two bits a worker: history (was sent there) and belief (is thought to be cached there)

Invariants, kept by `insert`:
- A chain is always touched from its head to its tail, so a block's parent is never in an older generation than the
  block: dropping `old` cuts tails and leaves heads (C17), and a worker's blocks form prefixes.
- Hence masks along a chain only lose bits, and match lengths are found by bisection.
- Inserting twice changes nothing (C13).

Belief may be wiped (restart, cleared cache); history may not, because the isolation bound (S8) rests on it: a wiped
worker gets another belief bit and the old one is ignored until a sweep has freed it.

Costs: `matches` O(d · log n) for n blocks and d distinct match lengths; `insert` O(n); eviction O(1) a block,
amortised; `wipe` O(1), with a sweep over all blocks at every DEAD_BITS_MAX-th. Memory: BYTES_PER_ENTRY a block, and a
leaf a distinct prompt; dicts are freed in portions, so that no request pays for a whole generation.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from router.contract.ids import TenantId, WorkerId

BYTES_PER_ENTRY = 128
"""Of a block or a leaf. Measured on CPython 3.13: a 128-bit int (48), its dict slot at mean fill (56), its mask."""

DEAD_BITS_MAX = 64
"""Retired bits kept before a sweep over the whole index frees them: bounds the width of masks."""

DEPTHS_MAX = 16
"""Distinct match lengths told apart, deepest first; workers with shorter ones count as not matching."""


@dataclass(slots=True)
class _Bits:
    """One worker's two bits, as masks."""

    history: int
    belief: int


@dataclass(slots=True)
class _Shard:
    young: dict[int, int] = field(default_factory=dict)
    old: dict[int, int] = field(default_factory=dict)
    young_leaves: dict[int, int] = field(default_factory=dict)
    old_leaves: dict[int, int] = field(default_factory=dict)
    evicted_at: float | None = None

    @property
    def entries(self) -> int:
        return self.young_entries + len(self.old) + len(self.old_leaves)

    @property
    def young_entries(self) -> int:
        return len(self.young) + len(self.young_leaves)


class PrefixIndex:
    def __init__(self, *, bytes_max: int, tenant_share_max: float) -> None:
        # A third each for young, old and the dropped generation that is being freed.
        self._live_max = max(2, bytes_max * 2 // 3 // BYTES_PER_ENTRY)
        self._young_max = max(1, int(self._live_max * tenant_share_max / 2))
        self._shards: dict[TenantId, _Shard] = {}
        self._dropped: list[dict[int, int]] = []
        self._live = 0
        self._bits: dict[WorkerId, _Bits] = {}
        self._workers_of_bit: dict[int, WorkerId] = {}
        self._dead_bits: list[int] = []
        self._free_bits: list[int] = []
        self._next_bit = 0
        self._believed = 0

    @property
    def blocks(self) -> int:
        """Blocks that can be matched."""
        return sum(len(shard.young) + len(shard.old) for shard in self._shards.values())

    @property
    def size_bytes(self) -> int:
        """Memory in use, dropped generations that are not freed yet included."""
        return (self._live + sum(map(len, self._dropped))) * BYTES_PER_ENTRY

    def add_worker(self, worker: WorkerId) -> None:
        """Make room for a worker; a known one keeps its entries."""
        if worker not in self._bits:
            self._bits[worker] = _Bits(self._take_bit(), self._take_bit())
            self._believe(worker)

    def remove_worker(self, worker: WorkerId) -> None:
        bits = self._bits.pop(worker, None)
        if bits is not None:
            self._disbelieve(bits)
            self._retire(bits.history, bits.belief)

    def wipe(self, worker: WorkerId) -> None:
        """Forget what the worker is thought to hold (it restarted or cleared its cache); its history stays."""
        bits = self._bits.get(worker)
        if bits is None:
            return
        self._disbelieve(bits)
        dead = bits.belief
        bits.belief = self._take_bit()
        self._believe(worker)
        self._retire(dead)

    def keep_tenants(self, tenants: set[TenantId]) -> None:
        """Drop the shards of tenants that are gone."""
        for tenant in [tenant for tenant in self._shards if tenant not in tenants]:
            shard = self._shards.pop(tenant)
            self._live -= shard.entries
            self._dropped += [shard.young, shard.old, shard.young_leaves, shard.old_leaves]

    def matches(self, tenant: TenantId, hashes: list[int]) -> list[tuple[WorkerId, int]]:
        """(worker, matched blocks > 0) for each worker thought to hold a prefix of the chain, deepest first."""
        found: list[tuple[WorkerId, int]] = []
        shard = self._shards.get(tenant)
        if shard is None or not hashes:
            return found
        seen = 0
        depth = _depth(shard, hashes, self._believed, len(hashes))
        for _ in range(DEPTHS_MAX):
            if depth == 0:
                break
            mask = _mask(shard, hashes[depth - 1]) & self._believed
            fresh = mask & ~seen
            seen |= mask
            while fresh:
                bit = fresh & -fresh
                fresh ^= bit
                found.append((self._workers_of_bit[bit], depth))
            depth = _depth(shard, hashes, self._believed & ~seen, depth - 1)
        return found

    def history_depth(self, tenant: TenantId, hashes: list[int], worker: WorkerId) -> int:
        """Leading blocks of the chain that were ever sent to the worker: whole history as far as it is kept."""
        shard, bits = self._shards.get(tenant), self._bits.get(worker)
        if shard is None or bits is None:
            return 0
        return _depth(shard, hashes, bits.history, len(hashes))

    def insert(self, tenant: TenantId, hashes: list[int], worker: WorkerId, *, now: float) -> None:
        """The worker is sent this chain. Unknown workers are ignored."""
        bits = self._bits.get(worker)
        if bits is None or not hashes:
            return
        shard = self._shards.get(tenant)
        if shard is None:
            shard = self._shards[tenant] = _Shard()
        both = bits.history | bits.belief
        before = shard.entries
        young, old = shard.young, shard.old
        for block in hashes:
            mask = young.get(block)
            if mask is None:
                mask = old.pop(block, 0)
                young[block] = mask | both if mask else both
            elif mask & both != both:
                young[block] = mask | both
        self._live += shard.entries - before
        self._make_room(shard, now)
        self._free_dropped(2 * len(hashes) + 8)

    def disbelieve(self, tenant: TenantId, hashes: list[int], worker: WorkerId, *, from_block: int) -> None:
        """The worker does not hold the chain's blocks from `from_block` on; that they were sent stays known."""
        shard, bits = self._shards.get(tenant), self._bits.get(worker)
        if shard is None or bits is None:
            return
        for block in hashes[from_block:]:
            for generation in (shard.young, shard.old):
                mask = generation.get(block)
                if mask is not None and mask & bits.belief:
                    generation[block] = mask & ~bits.belief

    def note_leaf(self, tenant: TenantId, block: int, tokens: int) -> None:
        """An answered request ended in `block` with `tokens` of prompt and completion; the largest is kept."""
        shard = self._shards.get(tenant)
        if shard is not None:
            leaves = shard.young_leaves if block in shard.young else shard.old_leaves
            if leaves is shard.young_leaves or block in shard.old:
                self._live += block not in leaves
                leaves[block] = max(tokens, self.leaf_tokens(tenant, block))

    def leaf_tokens(self, tenant: TenantId, block: int) -> int:
        """The most tokens of a request that ended in `block`, 0 when none did."""
        shard = self._shards.get(tenant)
        if shard is None:
            return 0
        return max(shard.young_leaves.get(block, 0), shard.old_leaves.get(block, 0))

    def evicted_at(self, tenant: TenantId) -> float | None:
        """When history of the tenant was last dropped for want of room, None if never."""
        shard = self._shards.get(tenant)
        return None if shard is None else shard.evicted_at

    def _make_room(self, shard: _Shard, now: float) -> None:
        """Rotate the tenant that is over its share, then the largest ones while the whole is over the limit (S23)."""
        if shard.young_entries > self._young_max:
            self._rotate(shard, now)
        while self._live > self._live_max:
            self._rotate(max(self._shards.values(), key=lambda each: each.entries), now)

    def _rotate(self, shard: _Shard, now: float) -> None:
        if shard.old or shard.old_leaves:
            shard.evicted_at = now
            self._live -= len(shard.old) + len(shard.old_leaves)
            self._dropped += [shard.old_leaves, shard.old]
        shard.old, shard.young = shard.young, {}
        shard.old_leaves, shard.young_leaves = shard.young_leaves, {}

    def _free_dropped(self, blocks: int) -> None:
        """Free a dropped generation in small portions: at once would stop the router for tens of milliseconds."""
        for _ in range(blocks):
            while self._dropped and not self._dropped[-1]:
                self._dropped.pop()
            if not self._dropped:
                return
            self._dropped[-1].popitem()

    def _believe(self, worker: WorkerId) -> None:
        bit = self._bits[worker].belief
        self._workers_of_bit[bit] = worker
        self._believed |= bit

    def _disbelieve(self, bits: _Bits) -> None:
        del self._workers_of_bit[bits.belief]
        self._believed &= ~bits.belief

    def _take_bit(self) -> int:
        if self._free_bits:
            return self._free_bits.pop()
        self._next_bit += 1
        return 1 << (self._next_bit - 1)

    def _retire(self, *bits: int) -> None:
        self._dead_bits += bits
        if len(self._dead_bits) >= DEAD_BITS_MAX:
            self._sweep()

    def _sweep(self) -> None:
        alive = ~sum(self._dead_bits)
        for shard in self._shards.values():
            for generation in (shard.young, shard.old):
                for block, mask in generation.items():
                    if mask & alive != mask:
                        generation[block] = mask & alive
        self._free_bits += self._dead_bits
        self._dead_bits = []


def _mask(shard: _Shard, block: int) -> int:
    mask = shard.young.get(block)
    return shard.old.get(block, 0) if mask is None else mask


def _depth(shard: _Shard, hashes: list[int], wanted: int, high: int) -> int:
    """Leading blocks, at most `high`, that hold any wanted bit; the end is tried first, being the usual answer."""
    if high <= 0 or not wanted:
        return 0
    if _mask(shard, hashes[high - 1]) & wanted:
        return high
    low, high = 0, high - 1
    while low < high:
        middle = (low + high) // 2
        if _mask(shard, hashes[middle]) & wanted:
            low = middle + 1
        else:
            high = middle
    return low

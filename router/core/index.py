"""Approximate prefix index: which worker was sent which prefix, from routing history.

    tenant shard   blocks  [ { block hash → mask }, … ]    generations by last touch, youngest first
                   leaves  [ { block hash → tokens }, … ]  of answered requests that ended there, likewise
    mask           bits of `beliefs.py`: a worker's history, and the epoch of its belief

Invariants, kept by `insert`:
- A chain is always touched from its head to its tail, so a block's parent is never in an older generation than the
  block, nor in an older epoch of a worker: dropping the oldest cuts tails and leaves heads (C17), and a worker's
  blocks form prefixes. A block that is in no generation has no descendants in any.
- Hence a chain's blocks lie in ever older generations (`chain_walk.py`), match lengths are found by bisection, and an
  insert touches only what follows the blocks that are young and in the worker's current epoch.
- Inserting twice changes nothing (C13).

Generations are small (GENERATION_BLOCKS_MAX), because a growing dict is copied whole: one of 700,000 blocks stops the
router for 70 ms when it grows, one of 20,480 for about 2 ms. Dropped generations are freed, and retired bits swept,
in portions of that size or less.

Costs for n blocks, d distinct match lengths and g generations (at most 35 a tenant): `matches` O(d · log n + g),
`insert` O(log n + g) and O(1) for each block that it adds or moves, `wipe` O(1). Memory: BYTES_PER_ENTRY a block, and a
leaf a distinct prompt; a chain's blocks share their mask.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from router.contract.ids import TenantId, WorkerId
from router.core.beliefs import EPOCHS, Beliefs, Holder
from router.core.chain_walk import Walk, depth_of, mask_at, walk

BYTES_PER_ENTRY: Final = 128
"""Of a block or a leaf. Measured on CPython 3.13: a 128-bit int (48), its dict slot at mean fill (56), its mask."""

GENERATION_BLOCKS_MAX: Final = 20_480
"""Just below 21,845, where CPython doubles a dict of 32,768 slots."""
GENERATIONS_MIN: Final = 8
"""A small index still forgets in eighths of a tenant's share."""

SWEEP_BLOCKS: Final = 64
"""Cleaned of retired bits with each insert while a sweep is under way, beside two for each block that it adds or moves:
epochs turn with such blocks, so bits retire no faster than sweeps free them. About 10 µs."""

TOUCH_ALL_BLOCKS: Final = 8
"""Chains up to this length are touched as fast as their settled head is found."""

DEPTHS_MAX: Final = 16
"""Distinct match lengths told apart, deepest first; workers with shorter ones count as not matching."""


@dataclass(slots=True)
class _Shard:
    blocks: list[dict[int, int]] = field(default_factory=lambda: [{}])
    leaves: list[dict[int, int]] = field(default_factory=lambda: [{}])
    entries: int = 0
    evicted_at: float | None = None


class PrefixIndex:
    def __init__(self, *, bytes_max: int, tenant_share_max: float) -> None:
        total = max(2, bytes_max // BYTES_PER_ENTRY)
        self._generation_max = max(1, min(GENERATION_BLOCKS_MAX, int(total * tenant_share_max) // GENERATIONS_MIN))
        # One generation may be over its size by a chain, and up to two wait to be freed.
        self._live_max = max(1, total - 3 * self._generation_max)
        self._tenant_max = max(1, int(self._live_max * tenant_share_max))
        self._beliefs = Beliefs()
        self._shards: dict[TenantId, _Shard] = {}
        self._live = 0
        self._dropped: list[dict[int, int]] = []
        self._dropped_leaves: list[dict[int, int]] = []
        self._sweep: list[dict[int, int]] = []
        self._sweep_keys: list[int] = []
        """Blocks of the last generation in `_sweep` that are still to be cleaned."""
        self._sweeping: list[int] = []
        self._walked: tuple[TenantId, list[int], Walk] | None = None
        """The last chain and where its blocks are; until blocks come, move or go."""

    @property
    def blocks(self) -> int:
        """Blocks that can be matched."""
        return sum(len(generation) for shard in self._shards.values() for generation in shard.blocks)

    def blocks_by_tenant(self) -> dict[TenantId, int]:
        """Blocks that can be matched, tenant by tenant."""
        return {tenant: sum(map(len, shard.blocks)) for tenant, shard in self._shards.items()}

    @property
    def size_bytes(self) -> int:
        """Memory in use, dropped generations that are not freed yet included."""
        waiting = sum(map(len, self._dropped)) + sum(map(len, self._dropped_leaves))
        return (self._live + waiting) * BYTES_PER_ENTRY

    def add_worker(self, worker: WorkerId) -> None:
        """Make room for a worker; a known one keeps its entries."""
        self._beliefs.add(worker)

    def remove_worker(self, worker: WorkerId) -> None:
        self._beliefs.remove(worker)

    def wipe(self, worker: WorkerId) -> None:
        """Forget what the worker is thought to hold (it restarted or cleared its cache); its history stays."""
        self._beliefs.wipe(worker)

    def set_capacity(self, worker: WorkerId, blocks: float) -> None:
        """The most blocks the worker has room for; infinite while unknown."""
        holder = self._beliefs.get(worker)
        if holder is not None:
            holder.capacity_blocks = max(1.0, blocks)

    def holder(self, worker: WorkerId) -> Holder | None:
        """What is believed of one worker's cache, to be read only."""
        return self._beliefs.get(worker)

    def occupy(self, worker: WorkerId, blocks: float, *, now: float) -> None:
        """The worker wrote this much that no prompt shows (replies): it takes room of what is believed."""
        holder = self._beliefs.get(worker)
        if holder is not None and blocks > 0:
            holder.current.blocks += blocks
            self._beliefs.settle(holder, now=now)

    def keep_tenants(self, tenants: set[TenantId]) -> None:
        """Drop the shards of tenants that are gone."""
        self._walked = None
        for tenant in [tenant for tenant in self._shards if tenant not in tenants]:
            shard = self._shards.pop(tenant)
            self._live -= shard.entries
            self._dropped += shard.blocks
            self._dropped_leaves += shard.leaves

    def matches(self, tenant: TenantId, hashes: list[int]) -> list[tuple[WorkerId, int]]:
        """(worker, matched blocks > 0) for each worker thought to hold a prefix of the chain, deepest first."""
        found: list[tuple[WorkerId, int]] = []
        known = self._walk(tenant, hashes)
        wanted = self._beliefs.believed
        depth = depth_of(known, hashes, wanted, len(hashes))
        for _ in range(DEPTHS_MAX):
            if depth == 0:
                break
            for holder in self._beliefs.holders_of(mask_at(known, hashes, depth) & wanted):
                wanted &= ~holder.own
                found.append((holder.worker, depth))
            depth = depth_of(known, hashes, wanted, depth - 1)
        return found

    def known_depth(self, tenant: TenantId, hashes: list[int]) -> int:
        """Leading blocks of the chain that were ever sent to any worker, as far as history is kept."""
        known = self._walk(tenant, hashes)
        return known[-1][0] if known else 0

    def history_depth(self, tenant: TenantId, hashes: list[int], worker: WorkerId) -> int:
        """Leading blocks of the chain that were ever sent to the worker: whole history as far as it is kept."""
        holder = self._beliefs.get(worker)
        if holder is None:
            return 0
        return depth_of(self._walk(tenant, hashes), hashes, holder.history, len(hashes))

    def insert(self, tenant: TenantId, hashes: list[int], worker: WorkerId, *, now: float) -> None:
        """The worker is sent this chain. Unknown workers are ignored."""
        holder = self._beliefs.get(worker)
        if holder is None or not hashes:
            return
        shard = self._shards.get(tenant)
        if shard is None:
            shard = self._shards[tenant] = _Shard()
        known = self._walk(tenant, hashes)
        self._walked = None
        count, current = known[-1][0] if known else 0, holder.current
        moved = self._touch(shard, known, hashes, holder) if count else 0
        if count < len(hashes):
            grown = dict.fromkeys(hashes[count:] if count else hashes, holder.history | current.bit)
            shard.blocks[0].update(grown)
            fresh = len(grown)
            shard.entries += fresh
            self._live += fresh
            current.blocks += fresh
            moved += fresh
        if current.blocks * EPOCHS >= holder.capacity_blocks:
            self._beliefs.settle(holder, now=now)
        if (
            len(shard.blocks[0]) + len(shard.leaves[0]) > self._generation_max
            or shard.entries > self._tenant_max
            or self._live > self._live_max
        ):
            self._make_room(shard, now)
        if self._dropped or self._dropped_leaves:
            self._free_dropped(2 * moved + 8)
        if self._sweep or self._beliefs.dead:
            self._sweep_some(SWEEP_BLOCKS + 2 * moved)

    def disbelieve(self, tenant: TenantId, hashes: list[int], worker: WorkerId, *, from_block: int) -> None:
        """The worker does not hold the chain's blocks from `from_block` on; that they were sent stays known."""
        shard, holder = self._shards.get(tenant), self._beliefs.get(worker)
        if shard is None or holder is None:
            return
        holder.doubted = holder.current
        for block in hashes[from_block:]:
            for generation in shard.blocks:
                mask = generation.get(block)
                if mask is None:
                    continue
                if mask & holder.own:
                    self._beliefs.lost(mask & holder.own, 1)
                    generation[block] = mask & ~holder.own
                break

    def note_leaf(self, tenant: TenantId, block: int, tokens: int) -> None:
        """An answered request ended in `block` with `tokens` of prompt and completion; the largest is kept."""
        shard = self._shards.get(tenant)
        if shard is None:
            return
        for place, generation in enumerate(shard.blocks):
            if block in generation:
                leaves = shard.leaves[place]
                if block not in leaves:
                    shard.entries += 1
                    self._live += 1
                leaves[block] = max(tokens, self.leaf_tokens(tenant, block))
                return

    def leaf_tokens(self, tenant: TenantId, block: int) -> int:
        """The most tokens of a request that ended in `block`, 0 when none did."""
        shard = self._shards.get(tenant)
        return 0 if shard is None else max([leaves.get(block, 0) for leaves in shard.leaves])

    def evicted_at(self, tenant: TenantId) -> float | None:
        """When history of the tenant was last dropped for want of room, None if never."""
        shard = self._shards.get(tenant)
        return None if shard is None else shard.evicted_at

    def _walk(self, tenant: TenantId, hashes: list[int]) -> Walk:
        """Where the chain's blocks are. A request asks for the same chain about three times."""
        walked = self._walked
        if walked is not None and walked[1] is hashes and walked[0] == tenant:
            return walked[2]
        shard = self._shards.get(tenant)
        known = walk(shard.blocks, hashes) if shard is not None and hashes else []
        self._walked = (tenant, hashes, known)
        return known

    def _touch(self, shard: _Shard, known: Walk, hashes: list[int], holder: Holder) -> int:
        """Bring the chain's known blocks into the youngest generation and the worker's current epoch; the number of
        those that were looked at: of a long chain, what follows its settled head."""
        young = shard.blocks[0]
        cleared = self._beliefs.alive & ~holder.own
        both = holder.history | holder.current.bit
        at = start = 0
        if known[0][1] is young and len(hashes) > TOUCH_ALL_BLOCKS and holder.doubted is not holder.current:
            at = start = depth_of(known[:1], hashes, holder.current.bit, len(hashes))
        for end, generation in known:
            blocks = hashes[at:end]
            if generation is young:
                masks = [generation[block] for block in blocks]
            else:
                masks = [generation.pop(block) for block in blocks]
            for mask, alike in groupby(masks):
                same = len(list(alike))
                self._count_touched(holder, mask, same)
                fresh = mask & cleared | both
                if fresh != mask or generation is not young:
                    young.update(dict.fromkeys(hashes[at : at + same], fresh))
                at += same
        return at - start

    def _count_touched(self, holder: Holder, mask: int, blocks: int) -> None:
        """`blocks` of this former mask moved into the worker's current epoch."""
        current = holder.current
        if mask & current.bit:
            return
        copies = blocks if mask & self._beliefs.believed & ~holder.own else 0
        current.blocks += blocks
        current.replicas += copies
        if not mask & holder.own:
            holder.restored += blocks - copies
            return
        for epoch in holder.epochs:
            if mask & epoch.bit:
                epoch.blocks = max(0.0, epoch.blocks - blocks)
                epoch.replicas = max(0, epoch.replicas - copies)
                epoch.reused += blocks if epoch is holder.epochs[0] else 0

    def _make_room(self, shard: _Shard, now: float) -> None:
        """Drop the oldest of the tenant that is over its share, then of the largest ones, to the limit (S23)."""
        if len(shard.blocks[0]) + len(shard.leaves[0]) > self._generation_max:
            shard.blocks.insert(0, {})
            shard.leaves.insert(0, {})
        while shard.entries > self._tenant_max:
            self._drop_oldest(shard, now)
        while self._live > self._live_max:
            self._drop_oldest(max(self._shards.values(), key=lambda each: each.entries), now)

    def _drop_oldest(self, shard: _Shard, now: float) -> None:
        blocks, leaves = shard.blocks.pop(), shard.leaves.pop()
        if not shard.blocks:
            shard.blocks.append({})
            shard.leaves.append({})
        count = len(blocks) + len(leaves)
        shard.entries -= count
        self._live -= count
        if count:
            shard.evicted_at = now
        self._dropped.append(blocks)
        self._dropped_leaves.append(leaves)

    def _free_dropped(self, entries: int) -> None:
        """Free dropped generations in small portions: at once would stop the router for milliseconds."""
        last, same = 0, 0
        while entries > 0 and self._dropped:
            generation = self._dropped[-1]
            if not generation:
                self._dropped.pop()
                continue
            _, mask = generation.popitem()
            entries -= 1
            if mask is not last:
                self._beliefs.lost(last, same)
                last, same = mask, 0
            same += 1
        self._beliefs.lost(last, same)
        while entries > 0 and self._dropped_leaves:
            if self._dropped_leaves[-1]:
                self._dropped_leaves[-1].popitem()
                entries -= 1
            else:
                self._dropped_leaves.pop()

    def _sweep_some(self, blocks: int) -> None:
        """Clean some blocks of retired bits. What is touched meanwhile is clean already: each block needs it once."""
        if self._sweep_keys:
            generation = self._sweep[-1]
            _clean(generation, self._sweep_keys[-blocks:], self._beliefs.alive)
            del self._sweep_keys[-blocks:]
        elif self._sweep:
            self._sweep.pop()
            if self._sweep:
                self._sweep_keys = list(self._sweep[-1])
            else:
                self._beliefs.free(self._sweeping)
                self._sweeping = []
        elif self._beliefs.sweep_due:
            self._sweeping = self._beliefs.take_dead()
            self._sweep = [generation for shard in self._shards.values() for generation in shard.blocks]
            self._sweep += [*self._dropped, {}]


def _clean(generation: dict[int, int], blocks: list[int], alive: int) -> None:
    last, cleaned = 0, 0
    for block in blocks:
        mask = generation.get(block)
        if mask is None:
            continue
        if mask is not last:
            last, cleaned = mask, mask & alive
        if cleaned != mask:
            generation[block] = cleaned

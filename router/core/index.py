"""Approximate prefix index: which worker was sent which prefix, from routing history.

    tenant     a tree of segments (`prefix_tree.py`), each with one mask
    mask       bits of `beliefs.py`: a worker's history, and the epoch of its belief

Invariants, kept by `insert`:
- A chain is always touched from its head to its tail, so a worker's blocks form prefixes, and a parent is never older
  than its children, nor in an older epoch of a worker: dropping the oldest cuts tails and leaves heads (C17).
- Inserting twice changes nothing (C13).

Nothing stops the router for long: a tenant that is gone is freed, and retired bits are swept, in portions.

Costs for a chain of s segments and n blocks, d distinct match lengths: `matches` O(s + d · log s + log n), `insert`
O(s), O(1) for each new block and what is dropped for it, `wipe` O(1). Memory: as `prefix_tree.py` counts it.
"""

from __future__ import annotations

from typing import Final

from router.contract.ids import TenantId, WorkerId
from router.core.beliefs import EPOCHS, Beliefs, Holder
from router.core.prefix_tree import Segment, Tree, Walk

ROOM_SHARE: Final = 1 / 16
"""Kept free: of leaves, which come between two inserts."""

SWEEP_SEGMENTS: Final = 64
"""Cleaned of retired bits with each insert while a sweep is under way, and one more for every four of its blocks:
epochs turn with such blocks. About 3 µs."""
FREE_BYTES: Final = 32_768
"""Of tenants that are gone, freed with each insert beside twice what it added."""

VICTIM_SHARE: Final = 1 / 8
"""The largest tenant gives this part of what it has before another one is looked for: O(tenants)."""

DEPTHS_MAX: Final = 16
"""Distinct match lengths told apart, deepest first; workers with shorter ones count as not matching."""

_NOTHING: Final = Walk([], 0)


class PrefixIndex:
    def __init__(self, *, bytes_max: int, tenant_share_max: float) -> None:
        self._live_max = int(bytes_max * (1 - ROOM_SHARE))
        self._tenant_max = int(self._live_max * tenant_share_max)
        self._beliefs = Beliefs()
        self._trees: dict[TenantId, Tree] = {}
        self._live = 0
        """Bytes of all tenants, without those that are gone."""
        self._gone: list[Tree] = []
        self._victim: Tree | None = None
        self._victim_until = 0
        """Bytes that it keeps before another one is looked for."""
        self._sweep: list[Tree] = []
        self._sweeping: list[int] = []
        self._walked: tuple[TenantId, list[int], Walk] | None = None
        """The last chain and where its blocks are; until blocks come, move or go."""

    @property
    def blocks(self) -> int:
        """Blocks that can be matched."""
        return sum(tree.blocks for tree in self._trees.values())

    def blocks_by_tenant(self) -> dict[TenantId, int]:
        """Blocks that can be matched, tenant by tenant."""
        return {tenant: tree.blocks for tenant, tree in self._trees.items()}

    @property
    def size_bytes(self) -> int:
        """Memory in use, tenants that are gone and not freed yet included."""
        return self._live + sum(tree.size_bytes for tree in self._gone)

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
        """Drop what tenants that are gone sent."""
        self._walked = None
        for tenant in [tenant for tenant in self._trees if tenant not in tenants]:
            tree = self._trees.pop(tenant)
            self._live -= tree.size_bytes
            self._gone.append(tree)
            if tree is self._victim:
                self._victim = None

    def matches(self, tenant: TenantId, hashes: list[int]) -> list[tuple[WorkerId, int]]:
        """(worker, matched blocks > 0) for each worker thought to hold a prefix of the chain, deepest first."""
        found: list[tuple[WorkerId, int]] = []
        known = self._walk(tenant, hashes)
        wanted = self._beliefs.believed
        place = known.reach(wanted, len(known.segments))
        for _ in range(DEPTHS_MAX):
            if place == 0:
                break
            depth = known.depth_of(place)
            for holder in self._beliefs.holders_of(known.segments[place - 1].mask & wanted):
                wanted &= ~holder.own
                found.append((holder.worker, depth))
            place = known.reach(wanted, place - 1)
        return found

    def known_depth(self, tenant: TenantId, hashes: list[int]) -> int:
        """Leading blocks of the chain that were ever sent to any worker, as far as history is kept."""
        return self._walk(tenant, hashes).depth

    def history_depth(self, tenant: TenantId, hashes: list[int], worker: WorkerId) -> int:
        """Leading blocks of the chain that were ever sent to the worker: whole history as far as it is kept."""
        holder = self._beliefs.get(worker)
        if holder is None:
            return 0
        known = self._walk(tenant, hashes)
        return known.depth_of(known.reach(holder.history, len(known.segments)))

    def insert(self, tenant: TenantId, hashes: list[int], worker: WorkerId, *, now: float) -> None:
        """The worker is sent this chain. Unknown workers are ignored."""
        holder = self._beliefs.get(worker)
        if holder is None or not hashes:
            return
        tree = self._trees.get(tenant)
        if tree is None:
            tree = self._trees[tenant] = Tree()
        known, before = self._walk(tenant, hashes), tree.size_bytes
        self._walked = None
        depth, current, segments = known.depth, holder.current, known.segments
        if depth:
            segments = self._touch(tree, known, holder, grows=depth < len(hashes))
        if depth < len(hashes):
            last = segments[-1] if segments else None
            grown = tree.grow(last, hashes, current.mask)
            if grown is not last:
                segments = [*segments, grown]
            current.blocks += len(hashes) - depth
        tree.touch(segments)
        added = tree.size_bytes - before
        self._live += added
        if current.blocks * EPOCHS >= holder.capacity_blocks:
            self._beliefs.settle(holder, now=now)
        if tree.size_bytes > self._tenant_max or self._live > self._live_max:
            self._make_room(tree, now)
        if self._gone:
            self._free_gone(FREE_BYTES + 2 * added)
        if self._sweep or self._beliefs.dead:
            self._sweep_some(SWEEP_SEGMENTS + len(hashes) // 4)

    def disbelieve(self, tenant: TenantId, hashes: list[int], worker: WorkerId, *, from_block: int) -> None:
        """The worker does not hold the chain's blocks from `from_block` on; that they were sent stays known."""
        tree, holder = self._trees.get(tenant), self._beliefs.get(worker)
        if tree is None or holder is None:
            return
        known, before = self._walk(tenant, hashes), tree.size_bytes
        self._walked = None
        for segment in known.segments:
            if segment.end <= from_block or not segment.mask & holder.own:
                continue
            if segment.start < from_block:
                if from_block >= known.depth:
                    break
                tree.split(segment, from_block)
            lost = tree.split(segment, known.depth) if segment.end > known.depth else segment
            self._beliefs.lost(lost.mask & holder.own, lost.end - lost.start)
            lost.mask &= ~holder.own
        self._live += tree.size_bytes - before

    def note_leaf(self, tenant: TenantId, hashes: list[int], tokens: int) -> None:
        """An answered request of this chain had `tokens` of prompt and completion; the most are kept."""
        tree = self._trees.get(tenant)
        if tree is None:
            return
        known, before = self._walk(tenant, hashes), tree.size_bytes
        if known.depth == len(hashes) and known.segments:
            tree.note_leaf(known.segments[-1], known.depth, tokens)
            self._live += tree.size_bytes - before

    def leaf_tokens(self, tenant: TenantId, hashes: list[int]) -> int:
        """The most tokens of a request that ended in any of the chain's blocks, 0 when none did."""
        most, known = 0, self._walk(tenant, hashes)
        for segment in known.segments:
            for depth, tokens in segment.leaves or ():
                if depth <= known.depth and tokens > most:
                    most = tokens
        return most

    def evicted_at(self, tenant: TenantId) -> float | None:
        """When history of the tenant was last dropped for want of room, None if never."""
        tree = self._trees.get(tenant)
        return None if tree is None else tree.evicted_at

    def _walk(self, tenant: TenantId, hashes: list[int]) -> Walk:
        """Where the chain's blocks are. A request asks for the same chain about three times."""
        walked = self._walked
        if walked is not None and walked[1] is hashes and walked[0] == tenant:
            return walked[2]
        tree = self._trees.get(tenant)
        known = _NOTHING if tree is None else tree.walk(hashes)
        self._walked = (tenant, hashes, known)
        return known

    def _touch(self, tree: Tree, known: Walk, holder: Holder, *, grows: bool) -> list[Segment]:
        """Bring the chain's known blocks into the worker's current epoch; its segments, which may be others now."""
        segments, current = known.segments, holder.current
        cleared, both = self._beliefs.alive & ~holder.own, current.mask
        last = segments[-1]
        if known.depth < last.end and (grows or last.mask & cleared | both != last.mask):
            segments = [*segments[:-1], tree.split(last, known.depth)]
        changed = False
        for segment in segments:
            mask = segment.mask
            fresh = mask & cleared | both
            if fresh != mask:
                self._count_touched(holder, mask, segment.end - segment.start)
                segment.mask, changed = fresh, True
        return tree.join(segments) if changed and len(segments) > 1 else segments

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
        epoch = self._beliefs.epoch_of(mask & holder.own)
        if epoch is not None:
            epoch.blocks = max(0.0, epoch.blocks - blocks)
            epoch.replicas = max(0, epoch.replicas - copies)
            epoch.reused += blocks if epoch is holder.epochs[0] else 0

    def _make_room(self, tree: Tree, now: float) -> None:
        """Drop the oldest of the tenant that is over its share, then of the largest ones, to the limit (S23)."""
        while tree.size_bytes > self._tenant_max and tree.oldest is not None:
            self._drop_oldest(tree, now)
        while self._live > self._live_max:
            victim = self._victim
            if victim is None or victim.size_bytes <= self._victim_until:
                victim = self._victim = max(self._trees.values(), key=_size)
                self._victim_until = int(victim.size_bytes * (1 - VICTIM_SHARE))
                if victim.oldest is None:
                    return
            self._drop_oldest(victim, now)

    def _drop_oldest(self, tree: Tree, now: float) -> None:
        self._live -= self._forget_oldest(tree)
        tree.evicted_at = now

    def _forget_oldest(self, tree: Tree) -> int:
        """Bytes that it took."""
        segment, before = tree.oldest, tree.size_bytes
        if segment is None:
            return 0
        tree.drop(segment)
        self._beliefs.lost(segment.mask, segment.end - segment.start)
        return before - tree.size_bytes

    def _free_gone(self, size_bytes: int) -> None:
        """Free tenants that are gone in small portions: at once would stop the router for milliseconds."""
        while self._gone and size_bytes > 0:
            tree = self._gone[-1]
            size_bytes -= self._forget_oldest(tree)
            if tree.oldest is None:
                self._gone.pop()

    def _sweep_some(self, segments: int) -> None:
        """Clean some segments of retired bits, oldest first. What is touched meanwhile is clean already and younger:
        each segment needs it once."""
        if not self._sweep:
            if self._beliefs.sweep_due:
                self._sweeping = self._beliefs.take_dead()
                self._sweep = [*self._trees.values(), *self._gone]
                for tree in self._sweep:
                    tree.swept_to = tree.oldest
            return
        alive, last, cleaned = self._beliefs.alive, 0, 0
        while self._sweep and segments > 0:
            tree = self._sweep[-1]
            segment = tree.swept_to
            while segment is not None and segments > 0:
                mask = segment.mask
                if mask is not last:
                    last, cleaned = mask, mask & alive
                if cleaned != mask:
                    segment.mask = cleaned
                segment = segment.younger
                segments -= 1
            tree.swept_to = segment
            if segment is None:
                self._sweep.pop()
                segments -= 1
        if not self._sweep:
            self._beliefs.free(self._sweeping)
            self._sweeping = []


def _size(tree: Tree) -> int:
    return tree.size_bytes

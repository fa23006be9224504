"""Exact block index: which workers hold which cache block in which tier, as their KV events say.

    tier    shards[hash mod 2^k]  { block hash → mask }     one bit a place, a place being a holder with content
    holder  bit, and for each tier the distinct blocks and the extra references { block hash → references − 1 }

A holder is one data-parallel rank of one worker. Block hashes are the worker's own, low 64 bits: they chain over the
whole prefix and begin with the salt and the model's adapter, so an entry never speaks of another namespace,
generation or prompt; a rotated salt makes all older entries unreachable (S3.8).

Invariants:
- A holder's blocks of a chain form a prefix: a worker evicts a chain from its tail (C17). The same holds for what it
  holds in device or host memory together, and for all tiers together. Hence match lengths are found by bisection.
- References are counted as the worker counts them: stored ×3 is gone after removed ×3 (C13).
- What a prompt's predecessor matched says where to look first, never what is found.
- Only holders with a lease that has not run out are matched (S3.1). Whoever follows the events grants it, for no
  longer than the history is complete: a holder that is not matched is unknown, never empty.

A wiped holder takes another bit and its old one is ignored at once; `sweep` frees it later, a shard at a time, so no
call holds the router for long. Sharding also keeps each dict's growth below 1 ms.

Costs: `store` and `remove` O(1) a block, amortised; `wipe` O(1); `matches` O(d · log(n / d)) for n blocks and d
distinct match lengths, and O(log n) more for each holder where other tiers than the device's are in use.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from router.contract.ids import WorkerId
from router.core.exact.block_shards import (
    Shards,
    clear_bits,
    depth_of,
    distinct_depths,
    mask_of,
    remove_blocks,
    store_blocks,
)

BYTES_PER_ENTRY = 128
"""Of a block in one tier, or of a second reference. Measured on CPython 3.13: a 64-bit int (48) and its dict slot at
mean fill (48), and something for masks that are not shared; `benchmarks/events.py` prints the measured figure."""

SHARD_BLOCKS = 8192
"""Blocks a shard is sized for: a sweep of one takes 0.4 ms, its growth 0.3 ms. More and smaller shards miss the
processor's caches more often: 512 blocks cost 1.5 times as much a block."""
SHARDS_MAX = 1024

SOFT_SHARE = 7 / 8
"""Above this share of the bound the largest holder is given up; at the bound itself, whoever stores next."""

DEAD_BITS_MAX = 64
"""Wiped places that wait for their sweep: bounds the width of masks. Beyond it a holder cannot begin again yet."""

SWEEP_BLOCKS_PER_BLOCK = 4
"""Blocks swept for each block stored or removed while places wait for it: bounds how long they wait."""

EXTRA_MAX = 131_072
"""Blocks of one holder and tier with several references. Concurrent equal prompts make some thousands at most."""

DEPTHS_MAX = 64
"""Distinct match lengths told apart, deepest first. `depth` answers for one holder without this bound."""

NAMED_MASKS_MAX = 1024
"""Masks whose workers are remembered; about 10 KB each with 1000 workers. Prompts of one head end in few masks."""

LAST_DEPTHS_MAX = 4096
"""Heads whose last match lengths are remembered: 400 bytes each."""
LIKELY_MAX = 8
"""Of one head. Two look-ups each, where a bisection takes log n."""

SHARED_MASKS_MAX = 4096
"""Masks of several holders kept as one object each; beyond it the table starts anew."""


class Tier(IntEnum):
    DEVICE = 0
    HOST = 1
    REMOTE = 2
    """Disk, another host, or a medium that this version does not know."""


class Holder(NamedTuple):
    worker: WorkerId
    rank: int = 0
    """Data-parallel rank: each has its own cache and its own events."""


class Match(NamedTuple):
    """Leading blocks of a chain that a holder has. Each further tier continues where the one before ends."""

    device: int
    host: int = 0
    remote: int = 0

    @property
    def blocks(self) -> int:
        return self.device + self.host + self.remote


class Resident(NamedTuple):
    """Distinct blocks."""

    device: int
    host: int
    remote: int


class Entry(NamedTuple):
    """What the index says of one block and one holder (S3.1)."""

    holder: Holder
    tier: Tier
    lease_until: float | None
    """None: not usable."""


@dataclass(slots=True, eq=False)
class _Place:
    holder: Holder
    bit: int = 0
    """0 until the first block is stored."""
    lease_until: float | None = None
    overflowed: bool = False
    blocks: list[int] = field(default_factory=lambda: [0] * len(Tier))
    extra: list[dict[int, int]] = field(default_factory=lambda: [{} for _ in Tier])


class BlockIndex:
    def __init__(self, *, bytes_max: int) -> None:
        self._entries_max = max(16, bytes_max // BYTES_PER_ENTRY)
        self._soft_max = int(self._entries_max * SOFT_SHARE)
        count = min(SHARDS_MAX, 1 << max(0, (self._entries_max // SHARD_BLOCKS).bit_length() - 1))
        self._tiers: list[Shards] = [[{} for _ in range(count)] for _ in Tier]
        self._tier_entries = [0] * len(Tier)
        self._extra_entries = 0
        self._places: dict[Holder, _Place] = {}
        self._ranks: dict[WorkerId, list[_Place]] = {}
        self._holder_of_bit: dict[int, Holder] = {}
        self.lease_changes = 0
        """Leases begun and ended so far: while it stays, so does who is exact."""
        self._usable = 0
        self._next_expiry = float("inf")
        self._next_bit = 0
        self._free_bits: list[int] = []
        self._dead_bits: list[int] = []
        self._swept_bits: list[int] = []
        self._sweep_at = 0
        self._sweep_debt = 0
        self._dropped_extra: list[dict[int, int]] = []
        self._shared_masks: dict[int, int] = {}
        self._workers_of_mask: dict[int, tuple[WorkerId, ...]] = {}
        self._last_depths: dict[int, tuple[int, ...]] = {}
        """Block of a chain at its last power of two → match lengths found for it."""
        self.places_version = 0
        """Changes whenever a holder gets another place: what `places_of` said before is no longer true."""

    # size

    @property
    def blocks(self) -> int:
        """Distinct blocks over all tiers, wiped ones that are not swept yet included."""
        return sum(self._tier_entries)

    @property
    def size_bytes(self) -> int:
        """Estimate: entries × BYTES_PER_ENTRY."""
        return (self.blocks + self._extra_entries) * BYTES_PER_ENTRY

    @property
    def bytes_max(self) -> int:
        return self._entries_max * BYTES_PER_ENTRY

    def resident(self, worker: WorkerId) -> Resident:
        """Distinct blocks of all the worker's ranks together, usable or not. All zero for an unknown worker."""
        places = self._ranks.get(worker, [])
        return Resident(*(sum(place.blocks[tier] for place in places) for tier in Tier))

    def resident_of(self, holder: Holder) -> Resident:
        place = self._places.get(holder)
        return Resident(0, 0, 0) if place is None else Resident(*place.blocks)

    # holders

    def add(self, holder: Holder) -> None:
        """Make room for a holder; it is not matched before its first lease. A known one keeps its entries."""
        if holder not in self._places:
            place = _Place(holder)
            self._places[holder] = place
            self._ranks.setdefault(holder.worker, []).append(place)

    def discard(self, holder: Holder) -> None:
        """Forget a holder."""
        self.wipe(holder)
        place = self._places.pop(holder, None)
        if place is not None:
            ranks = self._ranks[holder.worker]
            ranks.remove(place)
            if not ranks:
                del self._ranks[holder.worker]

    def wipe(self, holder: Holder) -> None:
        """Forget what the holder has. Its lease ends: an empty cache must be vouched for like any other."""
        place = self._places.get(holder)
        if place is not None:
            self._end_lease(place)
            self._empty(place)
            place.overflowed = False

    def empty(self, holder: Holder) -> None:
        """The holder's cache is known to be empty (C5): forget its blocks, keep its lease."""
        place = self._places.get(holder)
        if place is not None:
            self._empty(place)

    def overflowed(self, holder: Holder) -> bool:
        """Whether blocks of the holder were given up for want of room since its last `wipe`."""
        place = self._places.get(holder)
        return place is not None and place.overflowed

    # leases

    def renew(self, holder: Holder, *, until: float) -> None:
        """The holder's entries are whole and may be matched before `until` (same clock as `matches`)."""
        place = self._places.get(holder)
        if place is None or place.overflowed:
            return
        self.lease_changes += place.lease_until is None
        place.lease_until = until
        self._next_expiry = min(self._next_expiry, until)
        self._usable |= place.bit

    def suspend(self, holder: Holder) -> None:
        """End the lease at once; entries stay."""
        place = self._places.get(holder)
        if place is not None:
            self._end_lease(place)

    def is_exact(self, worker: WorkerId, *, now: float) -> bool:
        """Whether all ranks of the worker are followed and have a lease: then no match means not cached."""
        self._expire(now)
        places = self._ranks.get(worker)
        return bool(places) and all(place.lease_until is not None for place in places or ())

    # content

    def store(self, holder: Holder, tier: Tier, hashes: Sequence[int]) -> bool:
        """Add a reference to each block. False: no room; the holder has lost its lease and all its entries."""
        place = self._places.get(holder)
        if place is None or not self._has_room(place, len(hashes)):
            return False
        extra = place.extra[tier]
        extra_before = len(extra)
        added, fresh = store_blocks(self._tiers[tier], self._shared_masks, extra, place.bit, hashes)
        place.blocks[tier] += added
        self._tier_entries[tier] += fresh
        self._extra_entries += len(extra) - extra_before
        self._pay_sweep(len(hashes))
        if len(extra) > EXTRA_MAX:
            self._give_up(place)
        return not place.overflowed

    def remove(self, holder: Holder, tier: Tier, hashes: Sequence[int]) -> int:
        """Drop a reference to each block. Returns how many of them the holder was not known to have."""
        place = self._places.get(holder)
        if place is None or not place.bit:
            return len(hashes)
        extra = place.extra[tier]
        extra_before = len(extra)
        lost, gone, unknown = remove_blocks(self._tiers[tier], self._shared_masks, extra, place.bit, hashes)
        place.blocks[tier] -= lost
        self._tier_entries[tier] -= gone
        self._extra_entries += len(extra) - extra_before
        self._pay_sweep(len(hashes))
        return unknown

    # matches

    def matches(self, hashes: Sequence[int], *, now: float) -> dict[Holder, Match]:
        """Holders with a lease that have a prefix of the chain, deepest first; at most DEPTHS_MAX distinct depths.

        A holder that is not named has none of the chain if `is_exact` says so of its worker, else it is unknown.
        """
        self._expire(now)
        found: dict[Holder, Match] = {}
        if not hashes or not self._usable:
            return found
        tables = self._tables()
        for holders, depth in distinct_depths(tables, hashes, self._usable, DEPTHS_MAX):
            match = Match(depth)
            while holders:
                bit = holders & -holders
                holders ^= bit
                found[self._holder_of_bit[bit]] = match if len(tables) == 1 else self._by_tier(bit, hashes, depth)
        return found

    def places_of(self, workers: Iterable[WorkerId]) -> int:
        """The places of these workers, for `worker_matches`; true for one `places_version`. O(workers)."""
        bits = 0
        for worker in workers:
            for place in self._ranks.get(worker, ()):
                bits |= place.bit
        return bits

    def worker_matches(
        self, hashes: Sequence[int], places: int, *, now: float
    ) -> list[tuple[tuple[WorkerId, ...], Match]]:
        """As `matches`, of `places` alone, and by match: workers with an equal one come together."""
        self._expire(now)
        wanted = self._usable & places
        if not hashes or not wanted:
            return []
        tables = self._tables()
        found: list[tuple[tuple[WorkerId, ...], Match]] = []
        for holders, depth in self._depths(tables, hashes, wanted):
            if len(tables) == 1:
                found.append((self._workers(holders), Match(depth)))
                continue
            while holders:
                bit = holders & -holders
                holders ^= bit
                found.append(((self._holder_of_bit[bit].worker,), self._by_tier(bit, hashes, depth)))
        return found

    def _depths(self, tables: list[Shards], hashes: Sequence[int], wanted: int) -> list[tuple[int, int]]:
        """The distinct match lengths, looked for where those of the last prompt with this head were."""
        head = hashes[(1 << (len(hashes).bit_length() - 1)) - 1]
        found = distinct_depths(tables, hashes, wanted, DEPTHS_MAX, self._last_depths.get(head, ()))
        if len(self._last_depths) >= LAST_DEPTHS_MAX:
            self._last_depths.clear()
        self._last_depths[head] = tuple([depth for _, depth in found[:LIKELY_MAX]])
        return found

    def _workers(self, holders: int) -> tuple[WorkerId, ...]:
        workers = self._workers_of_mask.get(holders)
        if workers is None:
            if len(self._workers_of_mask) >= NAMED_MASKS_MAX:
                self._workers_of_mask.clear()
            bits = [1 << place for place, digit in enumerate(bin(holders)[:1:-1]) if digit == "1"]
            workers = self._workers_of_mask[holders] = tuple(self._holder_of_bit[bit].worker for bit in bits)
        return workers

    def depth(self, holder: Holder, hashes: Sequence[int], *, now: float) -> Match | None:
        """The match of one holder, None when it has no lease. Not bounded by DEPTHS_MAX."""
        self._expire(now)
        place = self._places.get(holder)
        if place is None or place.lease_until is None:
            return None
        return self._by_tier(place.bit, hashes, depth_of(self._tables(), hashes, place.bit, len(hashes)))

    def entries(self, block: int) -> list[Entry]:
        """All that is known of one block: for inspection, O(holders)."""
        return [
            Entry(place.holder, tier, place.lease_until)
            for tier in Tier
            for place in self._places.values()
            if place.bit & mask_of([self._tiers[tier]], block)
        ]

    # sweep

    def sweep(self, *, blocks_max: int) -> bool:
        """Free what was wiped, about `blocks_max` entries of it. True while there is more to do."""
        left = blocks_max
        while left > 0 and self._dropped_extra:
            left -= self._free_extra(left)
        while left > 0 and (self._swept_bits or self._dead_bits):
            left -= self._sweep_shard()
        return bool(self._swept_bits or self._dead_bits or self._dropped_extra)

    def _sweep_shard(self) -> int:
        """Sweep the next shard; the entries looked at, at least 1."""
        if not self._swept_bits:
            self._swept_bits, self._dead_bits, self._sweep_at = self._dead_bits, [], 0
        shards = len(self._tiers[0])
        tier, at = divmod(self._sweep_at, shards)
        if tier == len(Tier):
            self._free_bits += self._swept_bits
            self._swept_bits = []
            return 1
        if self._tier_entries[tier] == 0:
            self._sweep_at += shards - at
            return 1
        self._sweep_at += 1
        shard = self._tiers[tier][at]
        looked_at = len(shard)
        self._tier_entries[tier] -= clear_bits(shard, self._shared_masks, sum(self._swept_bits))
        return looked_at + 1

    def _free_extra(self, entries_max: int) -> int:
        extra = self._dropped_extra[-1]
        freed = min(entries_max, len(extra))
        for _ in range(freed):
            extra.popitem()
        if not extra:
            self._dropped_extra.pop()
        self._extra_entries -= freed
        return freed + 1

    def _pay_sweep(self, blocks: int) -> None:
        if len(self._shared_masks) > SHARED_MASKS_MAX:
            self._shared_masks.clear()
        if self._swept_bits or self._dead_bits or self._dropped_extra:
            self._sweep_debt += blocks * SWEEP_BLOCKS_PER_BLOCK
            if self._sweep_debt >= SHARD_BLOCKS:
                self.sweep(blocks_max=self._sweep_debt)
                self._sweep_debt = 0

    # places

    def _has_room(self, place: _Place, blocks: int) -> bool:
        """Whether the holder may store; makes room at the largest holder's cost, or refuses."""
        device, host, remote = self._tier_entries
        wanted = device + host + remote + self._extra_entries + blocks
        if wanted > self._soft_max:
            if not (self._swept_bits or self._dead_bits):
                self._give_up(max(self._places.values(), key=lambda each: sum(each.blocks)))
            if wanted > self._entries_max:
                self._give_up(place)
        if place.overflowed:
            return False
        if not place.bit:
            self._assign_bit(place)
        return bool(place.bit)

    def _give_up(self, place: _Place) -> None:
        self._end_lease(place)
        self._empty(place)
        place.overflowed = True

    def _assign_bit(self, place: _Place) -> None:
        if len(self._dead_bits) + len(self._swept_bits) >= DEAD_BITS_MAX:
            self._give_up(place)
            return
        if self._free_bits:
            place.bit = self._free_bits.pop()
        else:
            place.bit = 1 << self._next_bit
            self._next_bit += 1
        self._holder_of_bit[place.bit] = place.holder
        self._places_changed()
        if place.lease_until is not None:
            self._usable |= place.bit

    def _empty(self, place: _Place) -> None:
        if place.bit:
            self._usable &= ~place.bit
            del self._holder_of_bit[place.bit]
            self._dead_bits.append(place.bit)
            place.bit = 0
            self._places_changed()
        self._dropped_extra += [extra for extra in place.extra if extra]
        place.blocks = [0] * len(Tier)
        place.extra = [{} for _ in Tier]

    def _places_changed(self) -> None:
        self.places_version += 1
        self._workers_of_mask.clear()

    def _end_lease(self, place: _Place) -> None:
        self.lease_changes += place.lease_until is not None
        place.lease_until = None
        self._usable &= ~place.bit

    def _expire(self, now: float) -> None:
        """Ends the leases that have run out; O(1) unless one may have."""
        if now < self._next_expiry:
            return
        leases = [(place, place.lease_until) for place in self._places.values() if place.lease_until is not None]
        for place, until in leases:
            if until <= now:
                self._end_lease(place)
        self._next_expiry = min((until for _, until in leases if until > now), default=float("inf"))

    def _tables(self) -> list[Shards]:
        """The device's tier, and the others where they hold anything."""
        return [self._tiers[tier] for tier in Tier if tier == Tier.DEVICE or self._tier_entries[tier]]

    def _by_tier(self, bit: int, hashes: Sequence[int], total: int) -> Match:
        """Splits a holder's match: device first, then device or host, then any."""
        device = depth_of(self._tiers[:1], hashes, bit, total)
        near = device
        if device < total:
            near = depth_of(self._tiers[:2], hashes, bit, total)
        return Match(device, near - device, total - near)

"""Who is believed to hold what, as bits of the index's masks, for as long as a worker's cache may still hold it.

    worker   history bit                    was ever sent the block (isolation rests on it; survives a wipe)
             epochs  oldest … current       one bit each: the block was last touched in that epoch

A touch moves a block's bit to the worker's current epoch. When an epoch has taken 1/EPOCHS of the worker's capacity
the next one begins; once more than half of the oldest must have gone for what came after it, its bit is retired, which
forgets its blocks at once: the least recently touched belief goes first, as in the worker's own cache. A worker of
unknown capacity has one endless epoch. What is measured on the way is the expected reuse of what a new prefix would
evict:

    reuse = (blocks touched while in the oldest epoch + blocks that came back after everyone had dropped them)
            ÷ (blocks touched while in the oldest epoch + blocks dropped)

A retired bit is used again after `index.py` has swept it from every mask. All methods are O(a worker's epochs): EPOCHS,
and more where the same blocks are touched again and again, since each of the older ones keeps a few that were not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from router.contract.ids import WorkerId

EPOCHS: Final = 4
"""Belief is forgotten in quarters of a cache: of prompts that do not come back a worker is believed to hold the last
100 … 125 % of what it has room for."""
GONE_SHARE: Final = 0.5
"""Part of the oldest epoch that the cache must have dropped before it is forgotten. What is forgotten too early is
computed again on another worker and evicts there; what is believed too long is computed where it once was."""

DEAD_BITS_MAX: Final = 64
"""Retired bits kept before a sweep frees them, or as many as are alive: bounds the width of masks."""

FEW_BITS: Final = 6
"""Of a mask: found one by one."""

REUSE_WEIGHT: Final = 0.2
"""Weight of one retired epoch in a worker's measured reuse: five epochs are a cache turned over."""
REUSE_DEFAULT: Final = 0.5
"""Expected reuse of the oldest blocks before the first epoch was retired."""

TAIL_S_MIN: Final = 60.0
"""What lay idle longer than blocks of this worker usually do before they go, and than this, is wanted less in
proportion: gaps between two uses of a prefix are spread about as 1 / time."""


@dataclass(slots=True, eq=False)
class Epoch:
    holder: Holder
    position: int
    bit: int
    mask: int
    """Of a block that this worker alone was ever sent, touched last in this epoch."""
    blocks: float = 0.0
    """Blocks whose last touch was in this epoch, and what else it wrote (replies), in blocks."""
    replicas: int = 0
    """Of these, blocks that another worker held at that time."""
    reused: int = 0
    """Blocks that were touched again while this was the oldest epoch."""
    closed_at: float = math.inf


@dataclass(slots=True, eq=False)
class Holder:
    """One worker's bits."""

    worker: WorkerId
    history: int
    capacity_blocks: float = math.inf
    epochs: list[Epoch] = field(default_factory=list)
    """Oldest first; the last is the current one."""
    own: int = 0
    """All belief bits of the worker, as one mask."""
    reuse: float = REUSE_DEFAULT
    """Share of its oldest blocks that are wanted again, 0…1: touched before they go, or after."""
    restored: int = 0
    """Blocks sent to it since its last epoch was retired that had been known and that nobody held any more."""
    tail_s: float = 0.0
    """Mean time that its epochs lay closed before they were retired, 0 before the first."""
    turned_over: bool = False
    """Whether an epoch was ever retired for want of room: from then on the cache itself is full."""

    @property
    def current(self) -> Epoch:
        return self.epochs[-1]

    @property
    def resident_blocks(self) -> float:
        return sum(epoch.blocks for epoch in self.epochs)

    @property
    def free_blocks(self) -> float:
        """Room that holds nothing; infinite while the capacity is unknown."""
        return 0.0 if self.turned_over else max(0.0, self.capacity_blocks - self.resident_blocks)

    def tail_reuse(self, measured: float, *, now: float) -> float:
        """Expected reuse of what goes next, 0…1: measured, less what others hold too, less the longer it lay idle."""
        oldest = self.epochs[0]
        alone = 1.0 - min(1.0, oldest.replicas / oldest.blocks) if oldest.blocks else 1.0
        usual_s = max(self.tail_s, TAIL_S_MIN)
        return measured * alone * min(1.0, usual_s / max(now - oldest.closed_at, usual_s))


class Beliefs:
    def __init__(self) -> None:
        self.believed = 0
        """Every worker's belief bits."""
        self.alive = 0
        """Belief and history bits in use: a mask is cleaned with it when it is touched."""
        self._holders: dict[WorkerId, Holder] = {}
        self._epochs: list[Epoch | None] = []
        """By bit position."""
        self.dead: list[int] = []
        """Retired positions that are not swept from the masks yet."""
        self._free: list[int] = []

    @property
    def width(self) -> int:
        """Bits of the widest mask."""
        return len(self._epochs)

    @property
    def sweep_due(self) -> bool:
        return len(self.dead) >= max(DEAD_BITS_MAX, self.alive.bit_count())

    def get(self, worker: WorkerId) -> Holder | None:
        return self._holders.get(worker)

    def add(self, worker: WorkerId) -> None:
        """Make room for a worker; a known one keeps its bits."""
        if worker not in self._holders:
            position = self._take()
            self.alive |= 1 << position
            holder = self._holders[worker] = Holder(worker, 1 << position)
            self._open(holder)

    def remove(self, worker: WorkerId) -> None:
        holder = self._holders.pop(worker, None)
        if holder is None:
            return
        while holder.epochs:
            self._close_oldest(holder)
        self._retire(holder.history)

    def wipe(self, worker: WorkerId) -> None:
        """Forget what the worker is thought to hold; that it was sent stays known."""
        holder = self._holders.get(worker)
        if holder is None:
            return
        while holder.epochs:
            self._close_oldest(holder)
        holder.turned_over = False
        self._open(holder)

    def settle(self, holder: Holder, *, now: float) -> None:
        """Begin the next epoch when the current one is full, and forget the oldest while most of it must have gone."""
        current = holder.epochs[-1]
        if current.blocks * EPOCHS < holder.capacity_blocks:
            return
        current.closed_at = now
        self._open(holder)
        while len(holder.epochs) > 1:
            oldest = holder.epochs[0]
            if holder.resident_blocks - GONE_SHARE * oldest.blocks <= holder.capacity_blocks:
                break
            seen = oldest.reused + oldest.blocks
            if seen > 0:
                wanted = min(1.0, (oldest.reused + holder.restored) / seen)
                holder.reuse += REUSE_WEIGHT * (wanted - holder.reuse)
            holder.tail_s += (now - oldest.closed_at - holder.tail_s) * (REUSE_WEIGHT if holder.turned_over else 1.0)
            holder.restored, holder.turned_over = 0, True
            self._close_oldest(holder)

    def holders_of(self, mask: int) -> Iterator[Holder]:
        """The workers believed to hold a block with this mask. O(width / 64 + holders)."""
        for position in _positions(mask & self.believed):
            epoch = self._epochs[position]
            if epoch is not None:
                yield epoch.holder

    def epoch_of(self, bit: int) -> Epoch | None:
        """The epoch of a belief bit: a block has one of each worker at most."""
        return self._epochs[bit.bit_length() - 1]

    def lost(self, mask: int, blocks: int) -> None:
        """`blocks` entries with this mask left the index: nobody is believed to hold them any more."""
        for position in _positions(mask & self.believed):
            epoch = self._epochs[position]
            if epoch is not None:
                epoch.blocks = max(0.0, epoch.blocks - blocks)

    def take_dead(self) -> list[int]:
        """Positions to sweep from every mask before `free` may be called with them."""
        dead, self.dead = self.dead, []
        return dead

    def free(self, positions: list[int]) -> None:
        self._free += positions

    def _open(self, holder: Holder) -> None:
        position = self._take()
        epoch = self._epochs[position] = Epoch(holder, position, 1 << position, holder.history | 1 << position)
        holder.epochs.append(epoch)
        holder.own |= epoch.bit
        self.believed |= epoch.bit
        self.alive |= epoch.bit

    def _close_oldest(self, holder: Holder) -> None:
        epoch = holder.epochs.pop(0)
        holder.own &= ~epoch.bit
        self.believed &= ~epoch.bit
        self._retire(epoch.bit)

    def _take(self) -> int:
        if self._free:
            return self._free.pop()
        self._epochs.append(None)
        return len(self._epochs) - 1

    def _retire(self, bit: int) -> None:
        position = bit.bit_length() - 1
        self.alive &= ~bit
        self._epochs[position] = None
        self.dead.append(position)


def _positions(mask: int) -> Iterator[int]:
    """Positions of the set bits, lowest first. Of many by text search: big-integer arithmetic costs five times as much
    a bit."""
    if mask.bit_count() <= FEW_BITS:
        while mask:
            lowest = mask & -mask
            yield lowest.bit_length() - 1
            mask ^= lowest
        return
    digits = bin(mask)[:1:-1]
    at = digits.find("1")
    while at >= 0:
        yield at
        at = digits.find("1", at + 1)

"""What one holder's batches do to the block index, in order, and whether what the index has of it is whole. Pure.

`complete` is true from a moment at which the cache is known to be empty, for as long as every batch is understood.
Without it nothing is stored: only an emptied cache ends that state.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from router.core.exact.block_index import BlockIndex, Holder, Tier
from router.core.exact.event_batches import PREFIX_KINDS, Cleared, Event, Removed, Stored, decode_batch

STEP_BYTES = 64 * 1024
"""Batches up to this size are applied at once: at most 7,000 block hashes, some 2 ms; usual ones take 0.2 ms."""
STEP_BLOCKS = 2048
"""Blocks of a larger batch that are applied at once."""

_TIERS = {None: Tier.DEVICE, "GPU": Tier.DEVICE, "CPU": Tier.HOST}
"""`medium` → tier; any other one is remote."""


@dataclass(slots=True)
class Counts:
    """Since the stream was made."""

    batches: int = 0
    stored: int = 0
    removed: int = 0
    """Blocks, references included."""
    removed_unknown: int = 0
    """Blocks removed that were not known to be held: above 0 only where history is incomplete or wrong."""
    cleared: int = 0
    restarts: int = 0
    gaps: int = 0
    lost_messages: int = 0
    duplicates: int = 0
    replays: int = 0
    refused_events: int = 0
    unknown_events: int = 0


class HolderContent:
    def __init__(self, index: BlockIndex, holder: Holder, counts: Counts, *, block_size_tokens: int | None) -> None:
        """`block_size_tokens`: None = learnt from the first event. `counts` is written to."""
        self.complete = False
        self.reason = "unknown"
        """Why it is not complete: the last reason given to `degrade`."""
        self.block_size_tokens = block_size_tokens
        self._index = index
        self._holder = holder
        self._counts = counts
        self._waiting: deque[Event] = deque()

    @property
    def busy(self) -> bool:
        """A large batch is applied in portions: it must be finished before the next one is taken."""
        return bool(self._waiting)

    def begin(self) -> None:
        """The cache is known to be empty."""
        self.degrade("")
        self.complete = True

    def degrade(self, reason: str) -> None:
        """What is known is not all there is: drop it."""
        self.complete = False
        self.reason = reason
        self._waiting.clear()
        self._index.wipe(self._holder)

    def take(self, payload: bytes) -> bool:
        """The next batch. True when it, as far as it is applied already, emptied the cache."""
        self._counts.batches += 1
        decoded = decode_batch(payload)
        if decoded.refused or decoded.unknown:
            # Even its clear events are not used: what came behind them may be what was not understood.
            self._counts.refused_events += decoded.refused
            self._counts.unknown_events += decoded.unknown
            self.degrade("refused_event" if decoded.refused else "unknown_event")
            return False
        if len(payload) > STEP_BYTES:
            self._waiting.extend(decoded.events)
            return False
        return self._apply(decoded.events)

    def take_portion(self) -> bool:
        """The next part of a large batch. True when it emptied the cache."""
        event = self._waiting[0]
        if isinstance(event, Cleared) or len(event.block_hashes) <= STEP_BLOCKS:
            self._waiting.popleft()
            return self._apply([event])
        rest = event.block_hashes[STEP_BLOCKS:]
        del event.block_hashes[STEP_BLOCKS:]
        self._apply([event])
        event.block_hashes = rest
        return False

    def check_size(self, capacity_blocks: int | None) -> None:
        """Now and then: whether the index still has room, and whether the holder can have what it says it has."""
        if self._index.overflowed(self._holder):
            self.degrade("index_full")
        device = self._index.resident_of(self._holder).device
        if capacity_blocks is not None and device > capacity_blocks:
            # Events are wrong, or removals were never announced (C3).
            self.degrade("over_capacity")

    def _apply(self, events: list[Event]) -> bool:
        """Removals are mostly of one block each: a run of them is one call."""
        cleared = False
        run: list[int] = []
        medium: str | None = None
        for event in events:
            if type(event) is Removed and not event.group_idx:
                if event.medium != medium:
                    self._remove(run, medium)
                    run, medium = [], event.medium
                run += event.block_hashes
                continue
            if run:
                self._remove(run, medium)
                run = []
            if type(event) is Cleared:
                cleared = True
                self._clear()
            elif type(event) is Stored and not event.group_idx:
                self._store(event)
            else:
                self.degrade("hybrid_cache")
        if run:
            self._remove(run, medium)
        return cleared

    def _store(self, event: Stored) -> None:
        if not self.complete:
            return
        if event.kv_cache_spec_kind not in PREFIX_KINDS:
            self.degrade("hybrid_cache")
            return
        if event.block_size != self.block_size_tokens and not self._learns(event.block_size):
            self.degrade("block_size")
            return
        self._counts.stored += len(event.block_hashes)
        if not self._index.store(self._holder, _TIERS.get(event.medium, Tier.REMOTE), event.block_hashes):
            self.degrade("index_full")

    def _learns(self, block_size: int | None) -> bool:
        if self.block_size_tokens is None and block_size is not None and block_size > 0:
            self.block_size_tokens = block_size
        return block_size is None or block_size == self.block_size_tokens

    def _remove(self, hashes: list[int], medium: str | None) -> None:
        if self.complete and hashes:
            self._counts.removed += len(hashes)
            tier = _TIERS.get(medium, Tier.REMOTE)
            self._counts.removed_unknown += self._index.remove(self._holder, tier, hashes)

    def _clear(self) -> None:
        """The cache is empty from here on, whatever was missed before (C5)."""
        self._counts.cleared += 1
        if self.complete:
            self._index.empty(self._holder)
        else:
            self._index.wipe(self._holder)
        self.complete = True

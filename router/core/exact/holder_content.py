"""What one holder's batches do to the block index, in order, and whether what the index has of it is whole. Pure.

`complete` is true from a moment at which the cache is known to be empty, for as long as every batch is understood.
Without it nothing is stored: only an emptied cache ends that state.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import msgspec

from router.core.exact.block_index import BlockIndex, Holder, Tier
from router.core.exact.event_batches import (
    PREFIX_KINDS,
    Cleared,
    Decoded,
    Event,
    Removed,
    Stored,
    decode_batch,
    decode_parts,
)

STEP_BLOCKS = 1024
"""Blocks that are applied at once: 0.2 to 0.8 ms, by what the processor's caches hold of the index."""
STEP_BYTES = 9 * STEP_BLOCKS
EVENT_BYTES = 34
"""A batch of at most STEP_BYTES and EVENT_BYTES for each event has no more blocks: a hash takes 9 bytes, and the event
around it at least these."""

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
        self._parts: deque[msgspec.Raw] = deque()
        """Events behind those that wait, not decoded yet."""

    @property
    def busy(self) -> bool:
        """A large batch is applied in portions: it must be finished before the next one is taken."""
        return bool(self._waiting or self._parts)

    def begin(self) -> None:
        """The cache is known to be empty."""
        self.degrade("")
        self.complete = True

    def degrade(self, reason: str) -> None:
        """What is known is not all there is: drop it."""
        self.complete = False
        self.reason = reason
        self._waiting.clear()
        self._parts.clear()
        self._index.wipe(self._holder)

    def take(self, payload: bytes) -> bool:
        """The next batch. True when it, as far as it is applied already, emptied the cache."""
        self._counts.batches += 1
        decoded = decode_batch(payload)
        if not self._understands(decoded):
            # Even its clear events are not used: what came behind them may be what was not understood.
            return False
        if decoded.parts:
            self._parts.extend(decoded.parts)
            return False
        if len(payload) > STEP_BYTES + EVENT_BYTES * len(decoded.events):
            self._waiting.extend(decoded.events)
            return False
        return self._apply(decoded.events)

    def take_portion(self) -> bool:
        """The next part of a large batch. True when it emptied the cache."""
        if not self._waiting:
            parts = self._parts
            decoded = decode_parts([parts.popleft() for _ in range(min(STEP_BLOCKS, len(parts)))])
            if not self._understands(decoded):
                return False
            self._waiting.extend(decoded.events)
        portion: list[Event] = []
        room = STEP_BLOCKS
        while self._waiting and room > 0:
            event = self._waiting.popleft()
            if not isinstance(event, Cleared):
                if len(event.block_hashes) > room:
                    rest = msgspec.structs.replace(event, block_hashes=event.block_hashes[room:])
                    self._waiting.appendleft(rest)
                    del event.block_hashes[room:]
                room -= len(event.block_hashes)
            portion.append(event)
        return self._apply(portion)

    def _understands(self, decoded: Decoded) -> bool:
        """Else nothing is known any more."""
        self._counts.refused_events += decoded.refused
        self._counts.unknown_events += decoded.unknown
        if decoded.refused or decoded.unknown:
            self.degrade("refused_event" if decoded.refused else "unknown_event")
        return not (decoded.refused or decoded.unknown)

    def check_size(self, capacity_blocks: int | None) -> None:
        """Now and then: whether the index still has room, and whether the holder can have what it says it has."""
        if self._index.overflowed(self._holder):
            self.degrade("index_full")
        device = self._index.resident_of(self._holder).device
        if capacity_blocks is not None and device > capacity_blocks:
            # Events are wrong, or removals were never announced (C3).
            self.degrade("over_capacity")

    def _apply(self, events: list[Event]) -> bool:
        """True when the cache was emptied. Events are mostly of few blocks: a run of alike ones is one call."""
        cleared = False
        run: list[int] = []
        head: Stored | Removed | None = None
        for event in events:
            # Spelt out, as it runs for each event of each worker.
            if type(event) is Removed:
                if type(head) is Removed and event.medium == head.medium and event.group_idx == head.group_idx:
                    run += event.block_hashes
                    continue
            elif type(event) is Stored:
                if (
                    type(head) is Stored
                    and event.medium == head.medium
                    and event.block_size == head.block_size
                    and event.group_idx == head.group_idx
                    and event.kv_cache_spec_kind == head.kv_cache_spec_kind
                ):
                    run += event.block_hashes
                    continue
            else:
                self._apply_run(head, run)
                head = None
                cleared = True
                self._clear()
                continue
            self._apply_run(head, run)
            head, run = event, event.block_hashes
        self._apply_run(head, run)
        return cleared

    def _apply_run(self, head: Stored | Removed | None, run: list[int]) -> None:
        """The blocks of all events that are like `head`."""
        if head is None or not self.complete:
            return
        tier = _TIERS.get(head.medium, Tier.REMOTE)
        if head.group_idx:
            self.degrade("hybrid_cache")
        elif isinstance(head, Removed):
            self._counts.removed += len(run)
            self._counts.removed_unknown += self._index.remove(self._holder, tier, run)
        elif head.kv_cache_spec_kind not in PREFIX_KINDS:
            self.degrade("hybrid_cache")
        elif head.block_size != self.block_size_tokens and not self._learns(head.block_size):
            self.degrade("block_size")
        else:
            self._counts.stored += len(run)
            if not self._index.store(self._holder, tier, run):
                self.degrade("index_full")

    def _learns(self, block_size: int | None) -> bool:
        if self.block_size_tokens is None and block_size is not None and block_size > 0:
            self.block_size_tokens = block_size
        return block_size is None or block_size == self.block_size_tokens

    def _clear(self) -> None:
        """The cache is empty from here on, whatever was missed before (C5)."""
        self._counts.cleared += 1
        if self.complete:
            self._index.empty(self._holder)
        else:
            self._index.wipe(self._holder)
        self.complete = True

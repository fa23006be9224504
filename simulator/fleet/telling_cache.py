"""A worker's block pool that says what it stored and removed, as a worker's KV events do."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from router.core.exact.event_batches import Removed, Stored
from simulator.fleet.cache import PrefixCache
from simulator.fleet.names import BlockName

_encode = msgspec.msgpack.Encoder().encode


class TellingCache(PrefixCache):
    """A block that two sequences compute at once is told of once: this pool holds it once (see `engine.py`)."""

    def __init__(self, capacity_blocks: int, *, block_tokens: int) -> None:
        super().__init__(capacity_blocks)
        self._block_tokens = block_tokens
        self._events: list[Stored | Removed] = []

    def take_batch(self, now: float) -> bytes | None:
        """What happened since the last call, in the workers' own encoding; None for nothing."""
        if not self._events:
            return None
        events, self._events = self._events, []
        return _encode((now, events, 0))

    def allocate(self, count: int) -> None:
        evicted = [name for name, _ in zip(self._free, range(count - self._blank), strict=False)]
        super().allocate(count)
        if evicted:
            self._events.append(Removed([*evicted]))

    def name(self, chain: Sequence[BlockName], first: int, after: int) -> int:
        fresh = [name for name in chain[first:after] if name not in self._references and name not in self._free]
        if fresh:
            self._events.append(Stored([*fresh], self._block_tokens))
        return super().name(chain, first, after)

    def clear(self) -> None:
        super().clear()
        self._events = []

"""How many homes a prefix needs (S3.6): its measured load as a share of what one worker can do.

    load = Σ over its requests (uncached prefill ms + decode ms ÷ requests a worker takes), per ms of time, decayed
    homes = ⌈load ÷ (HOME_LOAD + share of a cache that a copy takes)⌉: the first so many workers clockwise on the
            ring from the prefix's own key

so the homes of two routers are the same set, or one contains the other. A prefix that cools down falls back to its
first homes, and the copies elsewhere age out of their caches. A placement rule (`placement.py`)
asks for more homes than the load.

A prefix is followed at depths that grow by half (4, 6, 9, 13 … blocks), each only while the one above it is not cold: a
stream of unique prompts costs one entry each, and those are the first to go. Of a hot prompt of n blocks `add` is
O(log n) and `head` O(log log n), of a cold one both are O(1); memory is bounded by `prefixes_max` entries of about
200 bytes.

Decay is a matter of units: loads are kept in milliseconds of the time `_began`, which later ones exceed by
2 ** (age ÷ HALF_LIFE_S), and brought forward before that leaves a float's range.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

HALF_LIFE_S: Final = 20.0
"""Long enough to average over a few dozen requests of a hot prefix, short enough to follow a news event."""
HOME_LOAD: Final = 0.1
"""Load that earns one home, beside the share of its cache that the copy takes: a copy too few costs waiting at every
burst, a copy too many one prefill and its room, so a prefix of half of a pool's traffic is spread over all of it."""
REQUESTS_MIN: Final = 3.0
"""Requests (decayed) before a prefix counts as hot: one long prompt is no crowd."""
COLD_REQUESTS: Final = 1.5
"""Entries with fewer (decayed) are cold, seen once or long ago: dropped first when room is short, and not followed
deeper."""
SHARED_SHARE: Final = 0.2
"""Part of a spread prefix's requests that agree on a depth for it to belong to the shared head: below it a conversation
of the prefix begins, which has one home."""
DEPTH_GROWTH: Final = 1.5
DEPTH_MAX: Final = 1 << 20
"""Blocks; longer than any prompt."""
FORWARD_HALF_LIVES_MAX: Final = 200.0
"""2 ** 200 milliseconds are far inside a float; it takes an hour."""


class _Entry:
    __slots__ = ("load_ms", "requests")

    def __init__(self, load_ms: float, requests: float) -> None:
        self.load_ms = load_ms
        self.requests = requests
        """Both in units of `_began`."""


class HotHead:
    """The deepest part of a prompt that is hot: `key` = hash of its first `blocks` blocks."""

    __slots__ = ("blocks", "homes", "key")

    def __init__(self, key: int, blocks: int, homes: int) -> None:
        self.key: Final = key
        self.blocks: Final = blocks
        self.homes: Final = homes


class HotPrefixes:
    """Heat of one pool's prefixes."""

    def __init__(self, *, prefixes_max: int) -> None:
        self._prefixes_max = prefixes_max
        self._entries: dict[int, _Entry] = {}
        self._began = 0.0
        self._depths: dict[int, tuple[int, ...]] = {}
        """By the first one, which depends on the pool's block size."""

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, hashes: Sequence[int], first_blocks: int, *, load_ms: float, requests: float, now: float) -> None:
        """A request brought this much load; `requests` is 1 once for each request, else 0."""
        if not self._entries or now - self._began > FORWARD_HALF_LIVES_MAX * HALF_LIFE_S:
            self._bring_forward(now)
        weight: float = 2.0 ** ((now - self._began) / HALF_LIFE_S)
        load_ms, requests, cold = load_ms * weight, requests * weight, COLD_REQUESTS * weight
        entries, blocks = self._entries, len(hashes)
        for depth in self._depths_of(blocks, first_blocks):
            if depth > blocks:
                return
            key = hashes[depth - 1]
            entry = entries.get(key)
            if entry is None:
                self._follow(key, load_ms, requests, now)
                return
            entry.load_ms += load_ms
            entry.requests += requests
            if entry.requests < cold:
                return

    def head(
        self, hashes: Sequence[int], first_blocks: int, *, block_share: float, homes_max: int, now: float
    ) -> HotHead | None:
        """The deepest head of the prompt that needs more than one home, None when none does.

        `block_share`: the part of a worker's cache that one block takes, 0 where the capacity is unknown.
        """
        entries, blocks = self._entries, len(hashes)
        if not blocks or hashes[min(first_blocks, blocks) - 1] not in entries:
            return None
        depths = self._depths_of(blocks, first_blocks)
        share: float = 2.0 ** ((self._began - now) / HALF_LIFE_S)
        # The decayed sum of a steady load is the load times its mean life.
        load_of = share * math.log(2.0) / (HALF_LIFE_S * 1000.0)
        deepest, most = 0, 0.0
        # Load and requests only fall with depth.
        low, high = 0, bisect_right(depths, blocks)
        while low < high:
            middle = (low + high) // 2
            depth = depths[middle]
            entry = entries.get(hashes[depth - 1])
            homes = 0.0
            if entry is not None and entry.requests * share >= REQUESTS_MIN:
                homes = entry.load_ms * load_of / (HOME_LOAD + depth * block_share)
            if homes > 1.0:
                deepest, most, low = depth, homes, middle + 1
            else:
                high = middle
        return HotHead(hashes[deepest - 1], deepest, min(math.ceil(most), homes_max)) if deepest else None

    def spread(
        self, hashes: Sequence[int], first_blocks: int, hot: HotHead | None, *, homes: int, now: float
    ) -> HotHead:
        """The head of a prompt that a placement rule gives `homes` homes at least; `hot`: what its load asks for.

        Its key is that of the first depth: prompts that part further down have the same homes.
        """
        key = hashes[min(first_blocks, len(hashes)) - 1]
        blocks = self.shared_blocks(hashes, first_blocks)
        if hot is None:
            return HotHead(key, blocks, homes)
        return HotHead(key, max(blocks, hot.blocks), max(homes, hot.homes))

    def shared_blocks(self, hashes: Sequence[int], first_blocks: int) -> int:
        """The deepest followed depth on which SHARED_SHARE of the requests under the first one agree."""
        depths = self._depths_of(len(hashes), first_blocks)
        first = self._entries.get(hashes[depths[0] - 1]) if depths else None
        if first is None:
            return min(first_blocks, len(hashes))
        least = SHARED_SHARE * first.requests
        low, high = 0, bisect_right(depths, len(hashes))
        while low < high:
            middle = (low + high) // 2
            entry = self._entries.get(hashes[depths[middle] - 1])
            if entry is not None and entry.requests >= least:
                low = middle + 1
            else:
                high = middle
        return depths[max(low - 1, 0)]

    def load(self, key: int, *, now: float) -> float:
        """Load of the prefix with this hash as a share of what one worker can do; 0 where it is not followed."""
        entry = self._entries.get(key)
        if entry is None:
            return 0.0
        share: float = 2.0 ** ((self._began - now) / HALF_LIFE_S)
        return entry.load_ms * share * math.log(2.0) / (HALF_LIFE_S * 1000.0)

    def _depths_of(self, blocks: int, first: int) -> tuple[int, ...]:
        """4, 6, 9, 13 … also beyond the prompt's length; a prompt shorter than the first counts at its own."""
        if blocks < first:
            return (blocks,) if blocks else ()
        depths = self._depths.get(first)
        if depths is None:
            depths = self._depths[first] = tuple(_growing(first))
        return depths

    def _follow(self, key: int, load_ms: float, requests: float, now: float) -> None:
        if len(self._entries) >= self._prefixes_max:
            began = self._began
            self._drop_cold(now)
            change: float = 2.0 ** ((began - self._began) / HALF_LIFE_S)
            load_ms, requests = load_ms * change, requests * change
        if len(self._entries) < self._prefixes_max:
            self._entries[key] = _Entry(load_ms, requests)

    def _drop_cold(self, now: float) -> None:
        """At most once for every half of `prefixes_max`: at worst the less loaded half goes."""
        self._bring_forward(now)
        if len(self._entries) > self._prefixes_max // 2:
            hottest = sorted(self._entries.items(), key=lambda item: item[1].load_ms, reverse=True)
            self._entries = dict(hottest[: self._prefixes_max // 2])

    def _bring_forward(self, now: float) -> None:
        """Units of `now`, without the cold ones. O(prefixes_max): 2 ms for 8192."""
        share: float = 2.0 ** ((self._began - now) / HALF_LIFE_S)
        self._entries = {
            key: _Entry(entry.load_ms * share, entry.requests * share)
            for key, entry in self._entries.items()
            if entry.requests * share >= COLD_REQUESTS
        }
        self._began = now


def _growing(first: int) -> Iterator[int]:
    depth = max(1, first)
    while depth <= DEPTH_MAX:
        yield depth
        depth = max(depth + 1, int(depth * DEPTH_GROWTH))

"""How many homes a prefix needs (S3.6): its measured load as a share of what one worker can do.

    load = Σ over its requests (uncached prefill ms + decode ms ÷ requests a worker takes), per ms of time, decayed
    homes = ⌈load ÷ (HOME_LOAD + share of a cache that a copy takes)⌉: the first so many workers clockwise on the
            ring from the prefix's own key

so the homes of two routers are the same set, or one contains the other. A prefix that cools down falls back to its
first homes, and the copies elsewhere age out of their caches.

A prefix is followed at depths that grow by half (4, 6, 9, 13 … blocks), each only once the one above it was seen, so a
stream of unique prompts costs one entry each and those are the first to go. `add` is O(log n) for n blocks of a hot
prompt and O(1) for a cold one; memory is bounded by `prefixes_max` entries of about 200 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

HALF_LIFE_S = 20.0
"""Long enough to average over a few dozen requests of a hot prefix, short enough to follow a news event."""
HOME_LOAD = 0.1
"""Load that earns one home, beside the share of its cache that the copy takes: a copy too few costs waiting at every
burst, a copy too many one prefill and its room, so a prefix of half of a pool's traffic is spread over all of it."""
REQUESTS_MIN = 3.0
"""Requests (decayed) before a prefix counts as hot: one long prompt is no crowd."""
COLD_REQUESTS = 1.5
"""Entries with fewer (decayed) are dropped first when room is short: seen once, or long ago."""
DEPTH_GROWTH = 1.5


class _Entry(msgspec.Struct, gc=False):
    load_ms: float
    requests: float
    at: float

    def decay(self, now: float) -> None:
        if now > self.at:
            share = 2.0 ** ((self.at - now) / HALF_LIFE_S)
            self.load_ms *= share
            self.requests *= share
            self.at = now


@dataclass(frozen=True, slots=True)
class HotHead:
    """The deepest part of a prompt that is hot: `key` = hash of its first `blocks` blocks."""

    key: int
    blocks: int
    homes: int


class HotPrefixes:
    """Heat of one pool's prefixes."""

    def __init__(self, *, prefixes_max: int) -> None:
        self._prefixes_max = prefixes_max
        self._entries: dict[int, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, hashes: Sequence[int], first_blocks: int, *, load_ms: float, requests: float, now: float) -> None:
        """A request brought this much load; `requests` is 1 once for each request, else 0."""
        entries, blocks = self._entries, len(hashes)
        depth = min(first_blocks, blocks)
        while 0 < depth <= blocks:
            key = hashes[depth - 1]
            entry = entries.get(key)
            if entry is None:
                self._follow(key, _Entry(load_ms, requests, now), now)
                return
            entry.decay(now)
            entry.load_ms += load_ms
            entry.requests += requests
            depth = _deeper(depth)

    def any_hot(self, hashes: Sequence[int], first_blocks: int) -> bool:
        """Whether `head` may find something: the shallowest head, whose absence rules the deeper ones out, is followed
        and was seen often enough. O(1)."""
        entry = self._entries.get(hashes[min(first_blocks, len(hashes)) - 1])
        return entry is not None and entry.requests >= REQUESTS_MIN

    def head(
        self, hashes: Sequence[int], first_blocks: int, *, block_share: float, homes_max: int, now: float
    ) -> HotHead | None:
        """The deepest head of the prompt that needs more than one home, None when none does.

        `block_share`: the part of a worker's cache that one block takes, 0 where the capacity is unknown.
        """
        hot: HotHead | None = None
        for depth in _depths(len(hashes), first_blocks):
            entry = self._entries.get(hashes[depth - 1])
            homes = 0 if entry is None else self._homes(entry, depth * block_share, now)
            if homes < 2:
                break
            hot = HotHead(hashes[depth - 1], depth, min(homes, homes_max))
        return hot

    def _homes(self, entry: _Entry, cache_share: float, now: float) -> int:
        share: float = 2.0 ** (min(0.0, entry.at - now) / HALF_LIFE_S)
        if entry.requests * share < REQUESTS_MIN:
            return 1
        load = entry.load_ms * share * math.log(2.0) / (HALF_LIFE_S * 1000.0)
        return math.ceil(load / (HOME_LOAD + cache_share))

    def _follow(self, key: int, entry: _Entry, now: float) -> None:
        if len(self._entries) >= self._prefixes_max:
            self._drop_cold(now)
        if len(self._entries) < self._prefixes_max:
            self._entries[key] = entry

    def _drop_cold(self, now: float) -> None:
        """O(prefixes_max), at most once for every half of it: at worst the less loaded half goes."""
        for entry in self._entries.values():
            entry.decay(now)
        kept = {key: entry for key, entry in self._entries.items() if entry.requests >= COLD_REQUESTS}
        if len(kept) > self._prefixes_max // 2:
            hottest = sorted(kept.items(), key=lambda item: item[1].load_ms, reverse=True)
            kept = dict(hottest[: self._prefixes_max // 2])
        self._entries = kept


def _depths(blocks: int, first: int) -> Iterator[int]:
    """4, 6, 9, 13 … up to the prompt's length; a prompt shorter than the first counts at its own."""
    depth = min(first, blocks)
    while 0 < depth <= blocks:
        yield depth
        depth = _deeper(depth)


def _deeper(depth: int) -> int:
    return max(depth + 1, int(depth * DEPTH_GROWTH))

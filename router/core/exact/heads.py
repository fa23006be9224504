"""Conversations seen before, found by the bytes that they came in: of the next turn only what is new is read.

    messages  [{"role":…},{"role":…},{"role":…},│{"role":…}]
    marks     ↑           ↑             ↑       │   digest of all bytes up to every stride → what is known there
    lengths                             └──────→│   (mark, next bytes up to a message's end) → head

A head is a row of messages whose rendered text has an anchor among the known prompts (`chains.Anchor`), so the text
behind it is all that is tokenised and hashed. Equal bytes are equal messages; whether they render alike in front of
others is for the caller to know, and what else decides the text is in the root: a digest of scope and other fields.

Cost of `find`: one XXH3 pass over the bytes up to the last mark known, and at most LENGTHS_MAX shorter ones. Heads are
entries of the tenant's share of the prompts' cache, about 800 bytes each with their marks; what they refer to is
counted there already.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

import xxhash

from router.contract.ids import TenantId
from router.core.exact.chains import Anchor
from router.core.exact.tenant_cache import TenantCache

STRIDE_BYTES: Final = 32 * 1024
"""A mark costs 1 µs, as the digest of so many bytes does."""
FAR_BYTES: Final = 256 * 1024
FAR_STRIDE_BYTES: Final = 128 * 1024
LENGTHS_MAX: Final = 4
"""Heads known by their length behind one mark, the latest used first."""
HEAD_BYTES: Final = 300
"""A head and its anchor, beside the anchor's bytes; the node may have lost its own place in the cache."""
NODE_BYTES: Final = 280
MARK_BYTES: Final = 300

Root = tuple[xxhash.xxh3_128, int]
"""(stream, its key) of everything but the messages that decides the text."""


@dataclass(frozen=True, slots=True)
class Head:
    end: int
    """Bytes of the messages' JSON, the bracket before the first one included."""
    anchor: Anchor
    text_bytes: int
    """Of the rendered text up to the anchor's place."""


@dataclass(slots=True)
class _Mark:
    head: Head | None
    """The last one that ends at or before the mark, where one was known."""
    lengths: tuple[int, ...] = ()
    """Bytes from here to the ends of heads with no mark between, the latest used first."""


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of one conversation, and where to remember more of it."""

    head: Head | None
    raw: memoryview
    marks: list[tuple[int, int]]
    """(bytes, key) with the root in front."""
    known: int
    """Leading marks that are known."""


class Heads:
    """Of one model. `cache`: the prompts' own."""

    def __init__(self, cache: TenantCache[object]) -> None:
        self._cache = cache

    def find(self, tenant: TenantId, root: Root, raw: memoryview) -> Found:
        """The longest known head of the messages' JSON that one of the deepest known mark's lengths leads to."""
        get = self._cache.shard(tenant).get
        marks = _marks(root, raw)
        for known in range(len(marks), 0, -1):
            place, key = marks[known - 1]
            mark = get(key)
            if isinstance(mark, _Mark):
                break
        else:
            return Found(None, raw, marks, 0)
        for length in sorted(mark.lengths, reverse=True):
            end = place + length
            head = get(_key(raw[place:end], key)) if end <= len(raw) else None
            if isinstance(head, Head):
                mark.lengths = _latest(length, mark.lengths)
                return Found(head, raw, marks, known)
        return Found(mark.head, raw, marks, known)

    def wanted(self, found: Found, ends: list[int]) -> list[int]:
        """Of the messages that end at `ends`, those to learn: the first, the last, and the last before each mark."""
        places = {0, len(ends) - 1} if ends else set()
        places |= {bisect_right(ends, place) - 1 for place, _ in found.marks[found.known :]}
        return sorted(places - {-1})

    def learn(self, tenant: TenantId, found: Found, heads: list[Head]) -> None:
        """`heads`: of the conversation that was looked for, shorter ones first."""
        put = self._cache.put
        known = [*([found.head] if found.head is not None else []), *heads]
        for place, key in found.marks[found.known :]:
            before = [head for head in known if head.end <= place]
            if before or not place:
                put(tenant, key, _Mark(before[-1] if before else None), MARK_BYTES)
        for head in heads:
            at = max(number for number, (place, _) in enumerate(found.marks) if place <= head.end)
            place, key = found.marks[at]
            anchor = head.anchor
            size = HEAD_BYTES + NODE_BYTES + len(anchor.before) + len(anchor.rest)
            put(tenant, _key(found.raw[place : head.end], key), head, size)
            mark = self._cache.shard(tenant).get(key)
            if not isinstance(mark, _Mark):
                mark = _Mark(None)
                put(tenant, key, mark, MARK_BYTES)
            mark.lengths = _latest(head.end - place, mark.lengths)


def _marks(root: Root, raw: memoryview) -> list[tuple[int, int]]:
    """(bytes, key of the root and all bytes up to there) at every stride, the root's in front."""
    stream, key = root
    marks, done, size = [(0, key)], 0, len(raw)
    while (end := done + (STRIDE_BYTES if done < FAR_BYTES else FAR_STRIDE_BYTES)) <= size:
        stream.update(raw[done:end])
        marks.append((end, stream.intdigest()))
        done = end
    return marks


def _key(raw: memoryview, seed: int) -> int:
    key: int = xxhash.xxh3_128_intdigest(raw, seed)
    return key


def _latest(length: int, lengths: tuple[int, ...]) -> tuple[int, ...]:
    if lengths and lengths[0] == length:
        return lengths
    return (length, *[known for known in lengths if known != length][: LENGTHS_MAX - 1])

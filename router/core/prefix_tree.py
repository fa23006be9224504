"""One tenant's prefixes: a tree of segments, and the order in which they were last touched.

    segment   blocks of a chain in a row that have one mask, between two places where chains part or masks change
    heads     hash of a segment's first block → segment; a block's hash stands for all before it, so it names its place
    order     oldest ↔ … ↔ youngest, a list through the segments themselves

Invariants:
- A parent is younger than its children: `touch` is called from a chain's tail to its head. So the oldest segment has
  no children, and dropping it cuts a tail (C17).
- A segment that is touched in part and changes is split there; one with a single child of the same mask is joined with
  it when both are touched next. So a conversation's turns are one segment as long as one worker has them.

Costs: `walk` O(segments of the chain + log n), `grow` 60 ns a block, `split` and `join` a copy of the segment's hashes,
the others O(1). Nothing of it stops the router: no dict grows beyond what is copied within a millisecond (HEADS_SPLIT),
and compiled segments hold nothing that the garbage collector would look at, half a million of them at once. So a tree
that goes takes the links apart itself.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from mypy_extensions import mypyc_attr

BLOCK_BYTES: Final = 16
SEGMENT_BYTES: Final = 288
"""Measured on CPython 3.13 with segments of one block: the object, its tuple, its numbers and its slot in `heads` at
mean fill are 215; the rest is for the mask of 64 workers."""
LEAF_BYTES: Final = 192
"""A leaf that is its segment's only one: a list of one pair."""

HEADS_SPLIT: Final = 8_192
"""A dict of so many heads is dealt out to HEADS_DICTS."""
HEADS_DICTS: Final = 256


@mypyc_attr(acyclic=True)
class Segment:
    __slots__ = (
        "blocks", "children", "end", "first", "last", "leaves", "mask", "older", "parent", "start", "younger",
    )  # fmt: skip

    def __init__(self, parent: Segment | None, start: int, end: int, blocks: bytes, first: int, mask: int) -> None:
        self.parent = parent
        self.start = start
        """Blocks of the chain before it."""
        self.end = end
        self.blocks = blocks
        """Their hashes, BLOCK_BYTES each, joined."""
        self.first = first
        """Hash of the first block."""
        self.last = first
        """Hash of the last block, once it is set."""
        self.mask = mask
        self.children = 0
        self.leaves: list[tuple[int, int]] | None = None
        """(depth in the chain, tokens) of answered requests that ended here, by depth."""
        self.older: Segment | None = None
        self.younger: Segment | None = None


class Walk:
    """Where a chain's known head lies: its segments in order, the last one perhaps in part."""

    __slots__ = ("depth", "segments")

    def __init__(self, segments: list[Segment], depth: int) -> None:
        self.segments: Final = segments
        self.depth: Final = depth
        """Blocks of the chain that are known."""

    def reach(self, wanted: int, high: int) -> int:
        """Of the first `high` segments, the leading ones whose masks hold any wanted bit: those are a head of them."""
        segments, low = self.segments, 0
        if not high or not segments[0].mask & wanted:
            return 0
        if segments[high - 1].mask & wanted:
            return high
        low, high = 1, high - 1
        while low < high:
            middle = (low + high + 1) // 2
            if segments[middle - 1].mask & wanted:
                low = middle
            else:
                high = middle - 1
        return low

    def depth_of(self, segments: int) -> int:
        """Blocks of the chain in the first so many segments."""
        return min(self.segments[segments - 1].end, self.depth) if segments else 0


class Tree:
    __slots__ = ("blocks", "evicted_at", "heads", "oldest", "size_bytes", "swept_to", "youngest")

    def __init__(self) -> None:
        self.heads: list[dict[int, Segment]] = [{}]
        self.oldest: Segment | None = None
        self.youngest: Segment | None = None
        self.blocks = 0
        self.size_bytes = 0
        self.swept_to: Segment | None = None
        """The oldest segment that a sweep has not reached; None outside of one."""
        self.evicted_at: float | None = None

    def __del__(self) -> None:
        segment = self.oldest
        while segment is not None:
            younger = segment.younger
            segment.parent = segment.older = segment.younger = None
            segment = younger

    def walk(self, hashes: list[int]) -> Walk:
        found: list[Segment] = []
        depth, count, heads = 0, len(hashes), self.heads
        while depth < count:
            first = hashes[depth]
            segment = (heads[0] if len(heads) == 1 else heads[first % HEADS_DICTS]).get(first)
            if segment is None or segment.start != depth:
                break
            found.append(segment)
            end = segment.end
            if end > count or segment.last != hashes[end - 1]:
                depth = _common(segment, hashes)
                break
            depth = end
        return Walk(found, depth)

    def grow(self, parent: Segment | None, hashes: list[int], mask: int) -> Segment:
        """What of a chain is behind `parent`, or all of it: in one with it, where nothing else follows and the mask is
        the same."""
        start, end = 0 if parent is None else parent.end, len(hashes)
        blocks = b"".join([block.to_bytes(BLOCK_BYTES) for block in (hashes[start:] if start else hashes)])
        self.blocks += end - start
        self.size_bytes += BLOCK_BYTES * (end - start)
        if parent is not None and not parent.children and parent.mask == mask:
            parent.blocks += blocks
            parent.end, parent.last = end, hashes[-1]
            return parent
        segment = Segment(parent, start, end, blocks, hashes[start], mask)
        segment.last = hashes[-1]
        if parent is not None:
            parent.children += 1
        self._name(segment)
        self.size_bytes += SEGMENT_BYTES
        self._link(segment, self.youngest)
        return segment

    def split(self, segment: Segment, depth: int) -> Segment:
        """Part a segment at this depth of its chain: the head, a new one; the segment itself is its tail from now."""
        at, blocks = (depth - segment.start) * BLOCK_BYTES, segment.blocks
        head = Segment(segment.parent, segment.start, depth, blocks[:at], segment.first, segment.mask)
        head.last = int.from_bytes(blocks[at - BLOCK_BYTES : at])
        head.children = 1
        segment.parent, segment.start, segment.blocks = head, depth, blocks[at:]
        segment.first = int.from_bytes(blocks[at : at + BLOCK_BYTES])
        leaves = segment.leaves
        if leaves is not None:
            place = bisect_right(leaves, depth, key=_depth)
            head.leaves, segment.leaves = leaves[:place] or None, leaves[place:] or None
        self._name(head)
        self._name(segment)
        self.size_bytes += SEGMENT_BYTES
        self._link(head, segment)
        return head

    def join(self, segments: list[Segment]) -> list[Segment]:
        """A chain's segments in order, those joined that nothing parts any more."""
        joined: list[Segment] = []
        for segment in segments:
            head = joined[-1] if joined else None
            if head is not None and head.children == 1 and head.mask == segment.mask:
                self._absorb(head, segment)
                joined[-1] = segment
            else:
                joined.append(segment)
        return joined

    def touch(self, segments: list[Segment]) -> None:
        """Make a chain's segments the youngest."""
        for segment in reversed(segments):
            if segment.younger is not None:
                self._unlink(segment)
                self._link(segment, self.youngest)

    def note_leaf(self, segment: Segment, depth: int, tokens: int) -> None:
        """Keep the most tokens of what ended there."""
        leaves = segment.leaves
        if leaves is None:
            leaves = segment.leaves = []
        place = bisect_right(leaves, depth, key=_depth)
        if place and leaves[place - 1][0] == depth:
            leaves[place - 1] = (depth, max(tokens, leaves[place - 1][1]))
            return
        leaves.insert(place, (depth, tokens))
        self.size_bytes += LEAF_BYTES

    def drop(self, segment: Segment) -> None:
        """Forget the oldest segment."""
        parent = segment.parent
        if parent is not None:
            parent.children -= 1
            segment.parent = None
        self._unlink(segment)
        self._unname(segment)
        self.blocks -= segment.end - segment.start
        self.size_bytes -= SEGMENT_BYTES + len(segment.blocks)
        if segment.leaves is not None:
            self.size_bytes -= LEAF_BYTES * len(segment.leaves)

    def _absorb(self, head: Segment, segment: Segment) -> None:
        """`head` becomes part of its only child, whose own children keep their parent."""
        segment.parent, segment.start = head.parent, head.start
        head.parent = None
        self._unlink(head)
        self._unname(segment)
        segment.first, segment.blocks = head.first, head.blocks + segment.blocks
        self._name(segment)
        if head.leaves is not None:
            segment.leaves = head.leaves + (segment.leaves or [])
        self.size_bytes -= SEGMENT_BYTES

    def _name(self, segment: Segment) -> None:
        first, heads = segment.first, self.heads
        if len(heads) == 1:
            heads[0][first] = segment
            if len(heads[0]) > HEADS_SPLIT:
                self.heads = [{} for _ in range(HEADS_DICTS)]
                for block, each in heads[0].items():
                    self.heads[block % HEADS_DICTS][block] = each
        else:
            heads[first % HEADS_DICTS][first] = segment

    def _unname(self, segment: Segment) -> None:
        first = segment.first
        heads = self.heads[0] if len(self.heads) == 1 else self.heads[first % HEADS_DICTS]
        if heads.get(first) is segment:
            del heads[first]

    def _link(self, segment: Segment, older: Segment | None) -> None:
        """Put it right behind `older`, on the younger side."""
        younger = None if older is None else older.younger
        segment.older, segment.younger = older, younger
        if older is None:
            self.oldest = segment
        else:
            older.younger = segment
        if younger is None:
            self.youngest = segment
        else:
            younger.older = segment

    def _unlink(self, segment: Segment) -> None:
        older, younger = segment.older, segment.younger
        if self.swept_to is segment:
            self.swept_to = younger
        if older is None:
            self.oldest = younger
        else:
            older.younger = younger
        if younger is None:
            self.youngest = older
        else:
            younger.older = older
        segment.older = segment.younger = None


def _depth(leaf: tuple[int, int]) -> int:
    return leaf[0]


def _common(segment: Segment, hashes: list[int]) -> int:
    """The depth up to which the chain runs through the segment, whose first block it has."""
    start, blocks = segment.start, segment.blocks
    low, high = start + 1, min(segment.end, len(hashes))
    while low < high:
        middle = (low + high + 1) // 2
        at = (middle - 1 - start) * BLOCK_BYTES
        if blocks[at : at + BLOCK_BYTES] == hashes[middle - 1].to_bytes(BLOCK_BYTES):
            low = middle
        else:
            high = middle - 1
    return low

"""A tree of segments against plain sets of blocks: what is known of a chain, what goes first, what it counts."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.prefix_tree import BLOCK_BYTES, HEADS_SPLIT, LEAF_BYTES, SEGMENT_BYTES, Segment, Tree

LENGTH = 30
steps = st.lists(st.tuples(st.integers(0, 5), st.integers(1, LENGTH), st.integers(0, 2)), min_size=1, max_size=40)


def chain(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.getrandbits(128) for _ in range(length)]


def families() -> list[list[int]]:
    """Chains that part from each other at several depths."""
    trunk = chain(1, LENGTH)
    parted = [trunk[:at] + chain(10 + at, LENGTH - at) for at in (3, 12, 12 + 1, 29)]
    return [trunk, *parted, chain(2, LENGTH)]


def blocks_of(segment: Segment) -> list[int]:
    blocks = segment.blocks
    return [int.from_bytes(blocks[at : at + BLOCK_BYTES]) for at in range(0, len(blocks), BLOCK_BYTES)]


def send(tree: Tree, hashes: list[int], mask: int) -> None:
    """As the index does: the chain's blocks get the bits and are the youngest."""
    known = tree.walk(hashes)
    segments, depth = known.segments, known.depth
    if segments and depth < segments[-1].end:
        segments = [*segments[:-1], tree.split(segments[-1], depth)]
    for segment in segments:
        segment.mask |= mask
    segments = tree.join(segments)
    if depth < len(hashes):
        last = segments[-1] if segments else None
        grown = tree.grow(last, hashes, mask)
        segments = segments if grown is last else [*segments, grown]
    tree.touch(segments)


def in_order(tree: Tree) -> list[Segment]:
    """Oldest first, by its links both ways."""
    found, segment = [], tree.oldest
    while segment is not None:
        found.append(segment)
        assert segment.younger is None or segment.younger.older is segment
        segment = segment.younger
    assert (found[-1] if found else None) is tree.youngest
    return found


def check(tree: Tree) -> None:
    """The invariants that `prefix_tree.py` states, and its counts."""
    segments = in_order(tree)
    place = {id(segment): at for at, segment in enumerate(segments)}
    children: dict[int, int] = {}
    for at, segment in enumerate(segments):
        assert (segment.end - segment.start) * BLOCK_BYTES == len(segment.blocks) > 0
        blocks = blocks_of(segment)
        assert (segment.first, segment.last) == (blocks[0], blocks[-1])
        assert tree.heads[segment.first % len(tree.heads)][segment.first] is segment
        if segment.parent is None:
            assert segment.start == 0
        else:
            assert place[id(segment.parent)] > at
            assert segment.parent.end == segment.start
            children[id(segment.parent)] = children.get(id(segment.parent), 0) + 1
    assert all(segment.children == children.get(id(segment), 0) for segment in segments)
    assert sum(map(len, tree.heads)) == len(segments)
    count = sum(segment.end - segment.start for segment in segments)
    leaves = sum(len(segment.leaves or ()) for segment in segments)
    assert tree.blocks == count
    assert tree.size_bytes == count * BLOCK_BYTES + len(segments) * SEGMENT_BYTES + leaves * LEAF_BYTES


@given(steps)
def test_what_is_known_of_a_chain_and_of_each_of_its_blocks(sent: list[tuple[int, int, int]]) -> None:
    tree, masks = Tree(), dict[int, int]()
    for family, length, bit in sent:
        hashes = families()[family][:length]
        send(tree, hashes, 1 << bit)
        for block in hashes:
            masks[block] = masks.get(block, 0) | 1 << bit
        check(tree)
    for every in families():
        known = tree.walk(every)
        assert known.depth == sum(block in masks for block in every)
        found = [segment.mask for segment in known.segments for _ in range(segment.end - segment.start)]
        assert found[: known.depth] == [masks[block] for block in every[: known.depth]]
        for wanted in range(1, 8):
            reach = known.depth_of(known.reach(wanted, len(known.segments)))
            assert reach == sum(masks.get(block, 0) & wanted > 0 for block in every)


@given(steps)
def test_the_oldest_goes_first_and_a_chain_from_its_tail(sent: list[tuple[int, int, int]]) -> None:
    """Of a chain that is younger than another everything is kept for longer than what the other has for itself."""
    tree, last_sent = Tree(), dict[int, int]()
    for moment, (family, length, bit) in enumerate(sent):
        hashes = families()[family][:length]
        send(tree, hashes, 1 << bit)
        last_sent.update(dict.fromkeys(hashes, moment))
    gone: list[int] = []
    while tree.oldest is not None:
        segment = tree.oldest
        assert segment.children == 0
        tree.drop(segment)
        gone.append(max(last_sent[block] for block in blocks_of(segment)))
        check(tree)
    assert gone == sorted(gone)
    assert (tree.blocks, tree.size_bytes) == (0, 0)


@settings(max_examples=60)
@given(steps, st.lists(st.tuples(st.integers(0, 5), st.integers(1, LENGTH), st.integers(1, 9)), max_size=12))
def test_leaves_stay_at_their_depth_whatever_is_parted_and_joined(
    sent: list[tuple[int, int, int]], ended: list[tuple[int, int, int]]
) -> None:
    tree, most = Tree(), dict[int, int]()
    turns = [("sent", *step) for step in sent] + [("ended", *step) for step in ended]
    random.Random(3).shuffle(turns)
    for kind, family, length, number in turns:
        hashes = families()[family][:length]
        if kind == "sent":
            send(tree, hashes, 1 << number)
            continue
        known = tree.walk(hashes)
        if known.depth == length:
            tree.note_leaf(known.segments[-1], length, number)
            most[hashes[-1]] = max(number, most.get(hashes[-1], 0))
        check(tree)
    for every in families():
        found = {
            every[depth - 1]: tokens
            for segment in tree.walk(every).segments
            for depth, tokens in segment.leaves or ()
            if depth <= tree.walk(every).depth
        }
        assert found == {block: most[block] for block in every if block in most}


def test_turns_of_a_conversation_are_one_segment() -> None:
    tree, hashes = Tree(), chain(1, 400)
    for turn in range(10, 400, 10):
        send(tree, hashes[:turn], 1)
    assert len(in_order(tree)) == 1
    send(tree, hashes[:200], 2)
    assert [segment.end for segment in tree.walk(hashes).segments] == [200, 390]
    send(tree, hashes[:390], 2)
    assert [segment.end for segment in tree.walk(hashes).segments] == [390]


def test_many_heads_are_dealt_out_and_found() -> None:
    tree, blocks = Tree(), chain(5, HEADS_SPLIT + 200)
    for block in blocks:
        send(tree, [block], 1)
    assert len(tree.heads) > 1
    check(tree)
    assert all(tree.walk([block]).depth == 1 for block in blocks)
    while tree.oldest is not None:
        tree.drop(tree.oldest)
    assert not any(tree.heads)

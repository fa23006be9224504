"""Inner loops of the exact block index over one tier's sharded masks. Each runs once a block: nothing here is spare.

A shard is a dict { block hash → mask }, a mask has one bit for each holder that has the block. Equal masks of several
holders are one object, by way of `shared`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Shards = list[dict[int, int]]
"""A power of two of them; a block is in the one that its low bits number."""


def store_blocks(
    shards: Shards, shared: dict[int, int], extra: dict[int, int], bit: int, hashes: Iterable[int]
) -> tuple[int, int]:
    """(blocks the holder did not have, those of them that nobody had)."""
    shard_of = len(shards) - 1
    added = fresh = 0
    for block in hashes:
        shard = shards[block & shard_of]
        mask = shard.get(block)
        if mask is None:
            shard[block] = bit
            fresh += 1
        elif mask & bit:
            extra[block] = extra.get(block, 0) + 1
        else:
            mask |= bit
            shard[block] = shared.setdefault(mask, mask)
            added += 1
    return added + fresh, fresh


def remove_blocks(
    shards: Shards, shared: dict[int, int], extra: dict[int, int], bit: int, hashes: Iterable[int]
) -> tuple[int, int, int]:
    """(blocks the holder lost, those of them that nobody has any more, blocks it did not have)."""
    shard_of = len(shards) - 1
    lost = gone = unknown = 0
    for block in hashes:
        shard = shards[block & shard_of]
        if extra and block in extra:
            extra[block] -= 1
            if not extra[block]:
                del extra[block]
            continue
        # Most blocks have one holder: taken out at once, and put back for the others' sake.
        mask = shard.pop(block, 0)
        if mask == bit:
            gone += 1
        elif mask & bit:
            mask ^= bit
            shard[block] = shared.setdefault(mask, mask)
            lost += 1
        else:
            unknown += 1
            if mask:
                shard[block] = mask
    return lost + gone, gone, unknown


def clear_bits(shard: dict[int, int], shared: dict[int, int], bits: int) -> int:
    """Take `bits` from all masks of a shard; the number of blocks that nobody has any more."""
    gone = 0
    for block, mask in [(block, mask) for block, mask in shard.items() if mask & bits]:
        mask &= ~bits
        if mask:
            shard[block] = shared.setdefault(mask, mask)
        else:
            del shard[block]
            gone += 1
    return gone


def mask_of(tables: Sequence[Shards], block: int) -> int:
    device, *others = tables
    mask = device[block & (len(device) - 1)].get(block, 0)
    for shards in others:
        mask |= shards[block & (len(shards) - 1)].get(block, 0)
    return mask


def depth_of(tables: Sequence[Shards], hashes: Sequence[int], wanted: int, high: int) -> int:
    """Leading blocks, at most `high`, that any wanted place holds; the end is tried first, being the usual answer."""
    if high <= 0 or not wanted:
        return 0
    if mask_of(tables, hashes[high - 1]) & wanted:
        return high
    low, high = 0, high - 1
    while low < high:
        middle = (low + high) // 2
        if mask_of(tables, hashes[middle]) & wanted:
            low = middle + 1
        else:
            high = middle
    return low


def distinct_depths(
    tables: Sequence[Shards], hashes: Sequence[int], usable: int, depths_max: int, likely: Sequence[int] = ()
) -> list[tuple[int, int]]:
    """(holders, depth > 0) for each match length of the chain, deepest first, at most `depths_max` of them.

    Holders only drop out along a chain, so a stretch with equal masks at both ends holds no match's end and is skipped.
    `likely`: depths, deepest first, to look at and behind before any other: they change the cost, not what is found.
    """
    found: list[tuple[int, int]] = []
    high, high_mask = len(hashes), mask_of(tables, hashes[-1]) & usable
    if high_mask:
        found.append((high_mask, high))
    device, others = tables[0], tables[1:]
    shard_of = len(device) - 1
    # Shorter ends of stretches still to be looked at; `high` is where the stretch on top of them ends.
    ends = [(1, mask_of(tables, hashes[0]) & usable)]
    for depth in reversed(likely):
        for place in (depth, depth + 1):
            if ends[-1][0] < place < high:
                ends.append((place, mask_of(tables, hashes[place - 1]) & usable))
    while ends and len(found) < depths_max:
        low, low_mask = ends[-1]
        if low_mask == high_mask or high - low <= 1:
            if low_mask != high_mask:
                found.append((low_mask & ~high_mask, low))
            high, high_mask = ends.pop()
            continue
        middle = (low + high) // 2
        block = hashes[middle - 1]
        mask = device[block & shard_of].get(block, 0)
        for shards in others:
            mask |= shards[block & shard_of].get(block, 0)
        ends.append((middle, mask & usable))
    return found

"""Where the blocks of one chain lie among generations, and how deep a mask reaches into it.

A block's parent is never in an older generation than the block (`index.py` keeps that). So a chain's known blocks are a
head, and the head is a row of stretches, each in an older generation than the one before:

    chain        ██████████████│██████│███▒▒▒▒▒▒▒     ▒ unknown
    generation        0            2    5

Costs for n blocks and g generations: `walk` O(log n) for each generation that has any, O(g); the others O(log n).
"""

from __future__ import annotations

from collections.abc import Sequence

Generation = dict[int, int]
"""Block hash → mask."""
Walk = list[tuple[int, Generation]]
"""(blocks of the chain up to here, the generation of those behind the entry before), the chain's head first."""


def walk(generations: Sequence[Generation], hashes: Sequence[int]) -> Walk:
    """The chain's known head; `generations` are the youngest first, `hashes` not empty."""
    found: Walk = []
    known, count = 0, len(hashes)
    for generation in generations:
        if hashes[known] not in generation:
            continue
        if hashes[-1] in generation:
            # Usual: a prompt that came before, or one whose new blocks were just inserted.
            found.append((count, generation))
            break
        low, high = known + 1, count - 1
        while low < high:
            middle = (low + high) // 2
            if hashes[middle] in generation:
                low = middle + 1
            else:
                high = middle
        known = low
        found.append((known, generation))
    return found


def mask_at(known: Walk, hashes: Sequence[int], depth: int) -> int:
    """The mask of the chain's block number `depth`, counted from 1; 0 beyond what is known."""
    for end, generation in known:
        if depth <= end:
            return generation.get(hashes[depth - 1], 0)
    return 0


def depth_of(known: Walk, hashes: Sequence[int], wanted: int, high: int) -> int:
    """Leading blocks, at most `high`, that hold any wanted bit; they are a head of the chain."""
    if not known or not wanted:
        return 0
    place = len(known) - 1
    while high > 0:
        end, generation = known[place]
        begin = known[place - 1][0] if place else 0
        place -= 1
        if begin >= high:
            continue
        high = min(high, end)
        if generation.get(hashes[high - 1], 0) & wanted:
            return high
        low, high = begin, high - 1
        if low < high and not generation.get(hashes[low], 0) & wanted:
            # Usual: no further worker has any of it.
            high = low
        while low < high:
            middle = (low + high) // 2
            if generation.get(hashes[middle], 0) & wanted:
                low = middle + 1
            else:
                high = middle
        if low > begin:
            return low
    return 0

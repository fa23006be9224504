"""Where a chain's blocks lie among generations, against a plain look at every block."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.core.chain_walk import Walk, depth_of, mask_at, walk

CHAIN = list(range(100, 130))


def scattered(lengths: list[int], reach: list[int]) -> list[dict[int, int]]:
    """Generations that take turns along the chain, and `reach[w]` leading blocks with bit w."""
    generations: list[dict[int, int]] = []
    at = 0
    for length in lengths:
        blocks = CHAIN[at : at + length]
        at += length
        generations.append({7: 1} | {block: mask_of(block, reach) for block in blocks})
    return generations


def mask_of(block: int, reach: list[int]) -> int:
    return sum(1 << worker for worker, blocks in enumerate(reach) if block - CHAIN[0] < blocks)


lengths = st.lists(st.integers(0, 12), max_size=6)
reaches = st.lists(st.integers(0, 32), min_size=3, max_size=3)


@given(lengths, reaches, st.integers(1, 30))
def test_the_known_head_is_found_whatever_generations_it_lies_in(taken: list[int], reach: list[int], size: int) -> None:
    generations, chain = scattered(taken, reach), CHAIN[:size]
    known = walk(generations, chain)
    assert (known[-1][0] if known else 0) == min(size, sum(taken))
    for depth in range(1, size + 1):
        expected = mask_of(chain[depth - 1], reach) if depth <= sum(taken) else 0
        assert mask_at(known, chain, depth) == expected


@given(lengths, reaches, st.integers(1, 30), st.integers(0, 30), st.integers(0, 7))
def test_a_depth_is_that_of_the_deepest_wanted_bit(
    taken: list[int], reach: list[int], size: int, high: int, wanted: int
) -> None:
    chain = CHAIN[:size]
    known = walk(scattered(taken, reach), chain)
    deepest = max((blocks for worker, blocks in enumerate(reach) if wanted >> worker & 1), default=0)
    assert depth_of(known, chain, wanted, min(high, size)) == min(deepest, size, high, sum(taken))


def test_nothing_is_known_of_a_chain_without_its_first_block() -> None:
    known: Walk = walk([{CHAIN[1]: 1}], CHAIN)
    assert known == []
    assert depth_of(known, CHAIN, 1, 30) == 0

"""What a modelled worker keeps to: every block is accounted for, every request ends, pinned blocks stay."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.fleet.cache import PrefixCache
from simulator.fleet.engine import FleetEngine
from simulator.fleet.hardware import H100_32B
from simulator.fleet.names import BlockName
from simulator.fleet.workload import BLOCK_TOKENS
from tests.simulator.fleet.scenes import ROOMY, drain, request

CAPACITY_BLOCKS = 24
TIGHT = dataclasses.replace(H100_32B, kv_capacity_tokens=CAPACITY_BLOCKS * BLOCK_TOKENS)

chains = st.lists(st.integers(0, 3), max_size=6)
"""Paths in a tree: blocks of equal index and equal way there are equal."""


def named(path: list[int]) -> list[int]:
    """Names of a path's blocks: each stands for the whole way to it, as in the traces."""
    return [hash(tuple(path[: depth + 1])) for depth in range(len(path))]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(chains, st.integers(1, 900), st.integers(1, BLOCK_TOKENS), st.floats(0, 20)), max_size=25))
def test_it_ends_every_request_and_gives_back_every_block(asked: list[tuple[list[int], int, int, float]]) -> None:
    engine = FleetEngine(TIGHT)
    finished = 0
    for number, (path, output_tokens, tail_tokens, at) in enumerate(sorted(asked, key=lambda each: each[3])):
        while engine.due_s <= at:
            finished += len(engine.finish_step(engine.due_s).finished)
            assert 0 <= engine.cache.available_blocks <= CAPACITY_BLOCKS
        engine.add(request(number, named(path), output_tokens=output_tokens, tail_tokens=tail_tokens), at)
    while engine.due_s < math.inf:
        finished += len(engine.finish_step(engine.due_s).finished)
    assert finished == len(asked)
    assert engine.cache.available_blocks == CAPACITY_BLOCKS
    assert engine.running == 0 and not engine.waiting


@settings(max_examples=60, deadline=None)
@given(st.lists(chains.filter(bool), min_size=1, max_size=12), st.data())
def test_it_never_evicts_what_is_pinned_nor_a_parent_before_its_child(
    paths: list[list[int]], data: st.DataObject
) -> None:
    cache = PrefixCache(10)
    pinned: list[tuple[list[BlockName], int]] = []
    for path in paths:
        chain = [BlockName(name) for name in named(path)]
        hit = cache.longest_prefix(chain, len(chain))
        if len(chain) - hit > cache.available_blocks - cache.unused(chain, hit):
            break
        cache.pin(chain, hit)
        cache.allocate(len(chain) - hit)
        duplicates = cache.name(chain, hit, len(chain))
        pinned.append((chain, duplicates))
        for held, _ in pinned:
            assert cache.longest_prefix(held, len(held)) == len(held)
        if data.draw(st.booleans()):
            gone, nameless = pinned.pop(data.draw(st.integers(0, len(pinned) - 1)))
            cache.release(gone, len(gone), nameless=nameless)
        for depth in range(1, len(chain) + 1):
            linear = sum(1 for _ in _leading(cache, chain, depth))
            assert cache.longest_prefix(chain, depth) == linear


def _leading(cache: PrefixCache, chain: list[BlockName], limit: int) -> list[BlockName]:
    """The longest cached prefix, block by block."""
    found = []
    for index in range(limit):
        if cache.longest_prefix([chain[index]], 1) == 0:
            break
        found.append(chain[index])
    return found


def test_it_computes_the_last_block_of_a_repeated_prompt_again() -> None:
    engine = FleetEngine(ROOMY)
    first = request(1, [1, 2, 3], tail_tokens=0)
    engine.add(first, 0.0)
    drain(engine)
    again = engine.add(request(2, [1, 2, 3], tail_tokens=0), 100.0)
    drain(engine)
    assert again.cached_tokens == 2 * BLOCK_TOKENS


def test_it_finds_the_answer_of_an_earlier_turn_in_the_cache() -> None:
    engine = FleetEngine(ROOMY)
    turn = request(1, [1, 2], tail_tokens=100, output_tokens=BLOCK_TOKENS)
    turn.chain.append(BlockName(3))
    engine.add(turn, 0.0)
    drain(engine)
    following = engine.add(request(2, [1, 2, 3, 4]), 100.0)
    drain(engine)
    assert following.cached_tokens == 3 * BLOCK_TOKENS


def test_it_refuses_what_can_never_fit() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        FleetEngine(TIGHT).add(request(1, list(range(CAPACITY_BLOCKS)), output_tokens=BLOCK_TOKENS), 0.0)


def test_it_decodes_slower_beside_others() -> None:
    alone, beside = FleetEngine(ROOMY), FleetEngine(ROOMY)
    alone.add(request(1, [1], output_tokens=300), 0.0)
    for number in range(8):
        beside.add(request(number, [1, 10 + number], output_tokens=300), 0.0)
    assert drain(beside) > 1.02 * drain(alone)

"""Which requests are recorded: whole sessions, within the budget, whatever head they share."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.sampling import CHILDREN_MAX, DEPTHS, FOLLOWED_MAX, HEADS_MAX, Sampling

BUDGET = 20.0


def _chain(rng: random.Random, blocks: int) -> list[int]:
    return [rng.getrandbits(128) for _ in range(blocks)]


def _conversation(rng: random.Random, head: list[int], turns: int) -> Iterator[list[int]]:
    """Each turn goes on from the one before."""
    text = list(head)
    for _ in range(turns):
        text = text + _chain(rng, rng.randint(6, 12))
        yield text


def _second(sampling: Sampling, requests: list[list[int]], rng: random.Random) -> list[bool]:
    kept = [sampling.keeps(hashes, rng) is not None for hashes in requests]
    sampling.second()
    return kept


def _busy(sampling: Sampling, rng: random.Random, head: list[int], *, seconds: int, per_s: int) -> None:
    for _ in range(seconds):
        _second(sampling, [head + _chain(rng, 30) for _ in range(per_s)], rng)


def test_below_the_budget_everything_is_kept() -> None:
    rng = random.Random(1)
    sampling = Sampling(per_s=BUDGET)
    for _ in range(60):
        assert all(_second(sampling, [_chain(rng, 20) for _ in range(15)], rng))
    assert sampling.share == 1.0 and sampling.refused == 0


def test_beyond_it_sessions_under_one_head_are_kept_or_left_whole() -> None:
    rng = random.Random(2)
    sampling, head = Sampling(per_s=BUDGET), _chain(rng, 20)
    _busy(sampling, rng, head, seconds=40, per_s=400)
    assert sampling.share < 0.1
    sampling.refused = 0
    turns: defaultdict[int, list[bool]] = defaultdict(list)
    for start in range(0, 600, 20):
        talks = {number: _conversation(rng, head, 5) for number in range(start, start + 20)}
        for _ in range(5):
            for number, talk in talks.items():
                turns[number].append(sampling.keeps(next(talk), rng) is not None)
            sampling.second()
    by_kept = Counter(sum(kept) for kept in turns.values())
    assert sampling.refused == 0
    assert by_kept[0] + by_kept[5] >= 0.97 * len(turns), f"turns kept of 5: {by_kept}"
    assert 0 < by_kept[5] < len(turns) / 4, "one head that all share does not decide for all"


def test_the_share_follows_the_traffic_and_the_records_stay_within_the_budget() -> None:
    rng = random.Random(3)
    sampling, head = Sampling(per_s=BUDGET), _chain(rng, 3)
    _busy(sampling, rng, head, seconds=30, per_s=300)
    kept = sum(sum(_second(sampling, [head + _chain(rng, 30) for _ in range(300)], rng)) for _ in range(30))
    assert kept <= 30 * BUDGET
    assert kept >= 30 * BUDGET * 0.2
    low = sampling.share
    _busy(sampling, rng, head, seconds=400, per_s=2)
    assert low < 0.1 and sampling.share == 1.0


def test_prompts_without_text_are_kept_by_the_same_share() -> None:
    rng = random.Random(4)
    sampling = Sampling(per_s=BUDGET)
    for _ in range(40):
        _second(sampling, [[] for _ in range(400)], rng)
    assert sampling.share < 0.1
    unit = Sampling(per_s=BUDGET).keeps([], rng)
    assert unit is not None and unit.depth == 0


def test_the_unit_lies_right_behind_the_head_that_many_share() -> None:
    rng = random.Random(5)
    sampling, head = Sampling(per_s=1e9), _chain(rng, 20)
    for _ in range(CHILDREN_MAX + 2):
        sampling.keeps(head + _chain(rng, 30), rng)
        sampling.second()
    unit = sampling.keeps(head + _chain(rng, 30), rng)
    assert unit is not None and (unit.head, unit.depth) == (20, 24)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), max_size=12), min_size=1, max_size=60), st.integers(0, 2**32))
def test_whatever_comes_all_of_it_stays_bounded(shapes: list[list[int]], seed: int) -> None:
    """Trees of any shape: a path is a list of branches."""
    rng = random.Random(seed)
    sampling = Sampling(per_s=5)
    for shape in shapes:
        hashes, place = [], 0
        for branch in shape:
            place = hash((place, branch)) & (2**128 - 1)
            hashes.append(place)
        unit = sampling.keeps(hashes, rng)
        if unit is not None:
            assert 0 <= unit.head < max(1, unit.depth) or not unit.depth
            assert unit.depth <= len(hashes)
    assert len(sampling._children) <= FOLLOWED_MAX and len(sampling._heads) <= HEADS_MAX
    assert list(DEPTHS) == sorted(set(DEPTHS))

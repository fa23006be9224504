"""The shift between two histograms against brute force over every pair, and on samples of known shift."""

from __future__ import annotations

import math
import random
from itertools import product
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.telemetry.shift import SAMPLES_MIN, VALUE_ERROR, Differences, Z, shift_of, together
from router.contract.histogram import GAMMA, Buckets, observe

VALUES = st.lists(st.integers(40, 140), min_size=SAMPLES_MIN, max_size=60)
"""Bucket numbers: 7 … 930 ms."""


EXACT_MS = 2e-6
"""Differences are told to the nanosecond; two figures may each be off by one."""


def buckets(places: list[int]) -> Buckets:
    found: Buckets = {}
    for place in places:
        found[place] = found.get(place, 0) + 1
    return found


def histogram(values: list[float]) -> Buckets:
    found: Buckets = {}
    for value in values:
        observe(found, value)
    return found


def middle(place: int) -> float:
    return GAMMA ** (place - 0.5)


def variance_by_definition(a: list[int], b: list[int]) -> float:
    """Of the rank sum, over the mid-ranks themselves: what the formula for ties abbreviates."""
    pooled = sorted(a + b)
    ranks = [(2 * pooled.index(each) + pooled.count(each) + 1) / 2 for each in pooled]
    whole, mean = len(pooled), (len(pooled) + 1) / 2
    return len(a) * len(b) / (whole * (whole - 1)) * sum((rank - mean) ** 2 for rank in ranks)


@given(a=VALUES, b=VALUES)
@settings(max_examples=60, deadline=None)
def test_it_is_the_median_of_all_differences_and_its_interval_their_ranks(a: list[int], b: list[int]) -> None:
    found = shift_of(buckets(a), buckets(b))
    assert found is not None
    differences = sorted(middle(after) - middle(before) for before, after in product(a, b))
    rank = max(1, math.floor(len(a) * len(b) / 2 - Z * math.sqrt(variance_by_definition(a, b))))
    blur = VALUE_ERROR * (found.before_ms + found.after_ms)
    assert found.ms == pytest.approx(median(differences), abs=EXACT_MS)
    assert found.low_ms == pytest.approx(differences[rank - 1] - blur, abs=EXACT_MS)
    assert found.high_ms == pytest.approx(differences[-rank] + blur, abs=EXACT_MS)
    assert found.before_ms == pytest.approx(middle(sorted(a)[math.ceil(len(a) / 2) - 1]))


@given(a=st.lists(st.integers(1, 30), min_size=1, max_size=12), b=st.lists(st.integers(1, 30), min_size=1, max_size=12))
@settings(max_examples=80, deadline=None)
def test_every_rank_is_that_of_the_sorted_differences(a: list[int], b: list[int]) -> None:
    differences = sorted(after - before for before, after in product(a, b))
    asked = Differences([(float(value), 1) for value in sorted(a)], [(float(value), 1) for value in sorted(b)])
    assert [asked.at(rank + 1) for rank in range(len(differences))] == pytest.approx(differences, abs=EXACT_MS)
    assert asked.median() == pytest.approx(median(differences), abs=EXACT_MS)


@given(a=VALUES, b=VALUES)
@settings(max_examples=30, deadline=None)
def test_exchanging_the_sides_turns_the_sign(a: list[int], b: list[int]) -> None:
    there, back = shift_of(buckets(a), buckets(b)), shift_of(buckets(b), buckets(a))
    assert there is not None and back is not None
    assert there.ms == pytest.approx(-back.ms, abs=EXACT_MS)
    assert there.low_ms == pytest.approx(-back.high_ms, abs=EXACT_MS)


@pytest.mark.parametrize(("before", "after"), [(SAMPLES_MIN - 1, 500), (500, SAMPLES_MIN - 1), (0, 0)])
def test_too_few_samples_tell_nothing(before: int, after: int) -> None:
    assert shift_of({90: before} if before else {}, {80: after} if after else {}) is None


def lognormal(rng: random.Random, count: int, median_ms: float) -> list[float]:
    return [rng.lognormvariate(math.log(median_ms), 0.35) for _ in range(count)]


def test_the_interval_holds_the_true_shift_about_as_often_as_it_says() -> None:
    rng = random.Random(5)
    held = 0
    for _ in range(200):
        before, after = lognormal(rng, 120, 300.0), [value - 60.0 for value in lognormal(rng, 120, 300.0)]
        found = shift_of(histogram(before), histogram([max(value, 1.0) for value in after]))
        assert found is not None
        held += found.low_ms <= -60.0 <= found.high_ms
    # 95 % and more, since the histogram's own error is added; 200 trials scatter by 1.5 %.
    assert held >= 185


def test_equal_samples_are_called_the_same_and_a_clear_gain_sooner() -> None:
    rng = random.Random(8)
    before, same, faster = (histogram(lognormal(rng, 400, ms)) for ms in (600.0, 600.0, 140.0))
    unchanged, gained, lost = shift_of(before, same), shift_of(before, faster), shift_of(faster, before)
    assert unchanged is not None and gained is not None and lost is not None
    assert (unchanged.told, gained.told, lost.told) == ("same", "sooner", "later")
    assert gained.share == pytest.approx(-0.76, abs=0.05)


def test_cohorts_are_weighed_by_what_they_can_tell() -> None:
    rng = random.Random(3)
    large = shift_of(histogram(lognormal(rng, 900, 300.0)), histogram(lognormal(rng, 900, 200.0)))
    small = shift_of(histogram(lognormal(rng, 20, 300.0)), histogram(lognormal(rng, 900, 300.0)))
    assert large is not None and small is not None
    whole = together([large, small])
    assert whole is not None
    weights = (900 * 900 / 1800, 20 * 900 / 920)
    expected = (large.ms * weights[0] + small.ms * weights[1]) / sum(weights)
    assert whole.ms == pytest.approx(expected)
    assert (whole.before_count, whole.after_count) == (920, 1800)
    assert whole.told == "sooner" and whole.high_ms - whole.low_ms < small.high_ms - small.low_ms
    assert together([]) is None


def test_one_cohort_alone_is_the_whole() -> None:
    rng = random.Random(4)
    only = shift_of(histogram(lognormal(rng, 100, 300.0)), histogram(lognormal(rng, 100, 200.0)))
    assert only is not None
    whole = together([only])
    assert whole is not None
    assert whole.ms == pytest.approx(only.ms)
    assert whole.high_ms - whole.low_ms == pytest.approx(only.high_ms - only.low_ms)

"""Increases of counters: never negative, unknown after a reset, exact otherwise."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controlplane.fleet.deltas import SPAN_S_MAX, Base, increases, per_bucket

counts = st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 1e12), min_size=1)


def test_it_subtracts():
    found = increases(Base(0, {"a": 3, "b": 1}), Base(2, {"a": 5, "b": 1}))
    assert found.known
    assert found.values == {"a": 2, "b": 0}


def test_the_first_page_gives_no_increase():
    assert not increases(None, Base(2, {"a": 5})).known
    assert not increases(Base(0, {}), Base(2, {"a": 5})).known


def test_a_counter_that_fell_is_a_reset_of_all():
    found = increases(Base(0, {"a": 3, "b": 1}), Base(2, {"a": 2, "b": 9}))
    assert (found.reset, found.restarted, found.known, found.values) == (True, False, False, {})


def test_another_start_time_is_a_restart_although_counters_grew():
    found = increases(Base(0, {"a": 3}, started_at=100.0), Base(2, {"a": 9}, started_at=160.0))
    assert (found.reset, found.restarted, found.values) == (True, True, {})


def test_a_start_time_that_trembles_is_no_restart():
    assert increases(Base(0, {"a": 3}, started_at=100.0), Base(2, {"a": 9}, started_at=100.9)).known


def test_a_counter_missing_from_a_page_is_unknown():
    assert increases(Base(0, {"a": 3, "b": 1}), Base(2, {"a": 4, "c": 8})).values == {"a": 1}


def test_an_increase_over_a_long_silence_belongs_to_no_bucket():
    found = increases(Base(0, {"a": 3}), Base(SPAN_S_MAX + 1, {"a": 900}))
    assert (found.known, found.reset, found.values) == (False, False, {})


@given(counts, counts)
def test_no_increase_is_ever_negative(before, after):
    found = increases(Base(0, before), Base(2, after))
    assert all(value >= 0 for value in found.values.values())
    fell = any(after[name] < before[name] for name in before.keys() & after.keys())
    assert found.reset == fell
    assert found.known == (not fell)


@given(st.lists(st.dictionaries(st.sampled_from("ab"), st.integers(0, 100), min_size=2, max_size=2), max_size=20))
def test_increases_of_a_run_without_reset_sum_to_the_whole(steps):
    """Partial sums of steps are a counter; its polled increases add up to what was added."""
    total = {"a": 0, "b": 0}
    seen = {"a": 0.0, "b": 0.0}
    base = Base(0, dict(total))
    for index, step in enumerate(steps, 1):
        total = {name: total[name] + step[name] for name in total}
        current = Base(index * 2.0, dict(total))
        found = increases(base, current)
        assert found.known
        seen = {name: seen[name] + found.values[name] for name in seen}
        base = current
    assert seen == total


def test_cumulative_buckets_become_single_ones():
    values = {"ttft_le:0.1": 3.0, "ttft_le:+Inf": 5.0, "ttft_le:0.5": 3.0, "queue_le:0.1": 9.0}
    assert per_bucket(values, "ttft_le:") == {"0.1": 3, "+Inf": 2}

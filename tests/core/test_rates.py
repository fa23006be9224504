"""Figures learnt online: prefill rate, bytes a token, credit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.rates import PREFILL_TOKENS_PER_S_MAX, PREFILL_TOKENS_PER_S_MIN, Credit, PrefillRate, TextRatio
from tests.core.scene import Scene, prompt, worker_id


def test_it_learns_a_rate_within_ten_samples_and_resists_one_odd_one() -> None:
    rate = PrefillRate(10_000.0)
    for _ in range(20):
        rate.observe(tokens=4000, seconds=4.0)
    assert rate.tokens_per_s == pytest.approx(1000, rel=0.1)
    rate.observe(tokens=4000, seconds=0.001)
    assert rate.tokens_per_s < 1300


@given(st.lists(st.tuples(st.integers(0, 10**9), st.floats(allow_nan=True, allow_infinity=True)), max_size=100))
def test_no_sample_drives_a_rate_out_of_its_bounds(samples: list[tuple[int, float]]) -> None:
    rate = PrefillRate()
    for tokens, seconds in samples:
        rate.observe(tokens=tokens, seconds=seconds)
    assert PREFILL_TOKENS_PER_S_MIN <= rate.tokens_per_s <= PREFILL_TOKENS_PER_S_MAX


def test_short_prompts_teach_nothing() -> None:
    rate = PrefillRate(5000.0)
    rate.observe(tokens=50, seconds=10.0)
    assert (rate.tokens_per_s, rate.samples) == (5000.0, 0)


def test_bytes_a_token_follow_the_answers() -> None:
    ratio = TextRatio()
    for _ in range(60):
        ratio.observe(text_bytes=3000, prompt_tokens=1000)
    assert ratio.bytes_per_token == pytest.approx(3.0, abs=0.05)
    assert ratio.tokens(3000) == pytest.approx(1000, rel=0.02)
    ratio.observe(text_bytes=3000, prompt_tokens=0)
    ratio.observe(text_bytes=10**9, prompt_tokens=1)
    assert ratio.bytes_per_token <= 16


def test_a_liar_loses_credit_and_can_earn_it_back() -> None:
    credit = Credit()
    for _ in range(60):
        credit.observe(predicted_tokens=1000, delivered_tokens=0)
    assert credit.share == pytest.approx(0.05)
    for _ in range(60):
        credit.observe(predicted_tokens=1000, delivered_tokens=5000)
    assert 0.95 < credit.share <= 1.0


def test_workers_without_samples_share_what_the_pool_learnt() -> None:
    scene = Scene()
    for seed in range(20):
        scene.finish(scene.start_on(0, prompt(seed, 8000)), cached=0, ttft_s=1.0)
    rates = scene.table.state(now=scene.now).worker_prefill_tokens_per_s
    assert rates[worker_id(0)] == pytest.approx(2000, rel=0.15)
    assert rates[worker_id(3)] == pytest.approx(rates[worker_id(0)], rel=0.2)


def test_a_slow_worker_is_told_apart() -> None:
    scene = Scene()
    for seed in range(20):
        scene.finish(scene.start_on(0, prompt(2 * seed, 8000)), cached=0, ttft_s=2.0)
        scene.finish(scene.start_on(1, prompt(2 * seed + 1, 8000)), cached=0, ttft_s=0.2)
    rates = scene.table.state(now=scene.now).worker_prefill_tokens_per_s
    assert rates[worker_id(1)] > 5 * rates[worker_id(0)]
    assert worker_id(0) not in {scene.choose(prompt(seed, 8000)).worker for seed in range(100, 130)}


def test_waiting_behind_others_is_not_taken_for_slowness() -> None:
    scene = Scene()
    for round_ in range(15):
        batch = [scene.start_on(0, prompt(100 * round_ + seed, 8000)) for seed in range(4)]
        for reservation in batch:
            scene.finish(reservation, cached=0, ttft_s=0.2)
    assert scene.table.state(now=scene.now).worker_prefill_tokens_per_s[worker_id(0)] == pytest.approx(10_000, rel=0.15)

"""Figures learnt online: prefill rate, bytes a token, credit."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.model import Outcome
from router.core.rates import (
    ATTENTION_DOUBLING_TOKENS_DEFAULT,
    ATTENTION_DOUBLING_TOKENS_MAX,
    ATTENTION_DOUBLING_TOKENS_MIN,
    PREFILL_TOKENS_PER_S_MAX,
    PREFILL_TOKENS_PER_S_MIN,
    Attention,
    Credit,
    PrefillRate,
    TextRatio,
)
from tests.core.scene import Scene, prompt, worker_id


def test_it_learns_a_rate_within_ten_samples_and_resists_one_odd_one() -> None:
    rate = PrefillRate(10_000.0)
    for _ in range(20):
        rate.observe(work_tokens=4000, seconds=4.0)
    assert rate.tokens_per_s == pytest.approx(1000, rel=0.1)
    rate.observe(work_tokens=4000, seconds=0.001)
    assert rate.tokens_per_s < 1300


@given(st.lists(st.tuples(st.integers(0, 10**9), st.floats(allow_nan=True, allow_infinity=True)), max_size=100))
def test_no_sample_drives_a_rate_out_of_its_bounds(samples: list[tuple[int, float]]) -> None:
    rate = PrefillRate()
    for tokens, seconds in samples:
        rate.observe(work_tokens=tokens, seconds=seconds)
    assert PREFILL_TOKENS_PER_S_MIN <= rate.tokens_per_s <= PREFILL_TOKENS_PER_S_MAX


def test_short_prompts_teach_nothing() -> None:
    rate = PrefillRate(5000.0)
    rate.observe(work_tokens=50, seconds=10.0)
    assert (rate.tokens_per_s, rate.samples) == (5000.0, 0)


def test_prompts_that_end_in_one_step_are_no_faster_worker() -> None:
    """Three of 4,000 tokens have their first bytes together: one is seen to take 1.2 s, the others nothing."""
    rate = PrefillRate(10_000.0)
    for _ in range(100):
        for seconds in (1.2, 0.0, 0.0):
            rate.observe(work_tokens=4000, seconds=seconds)
    assert rate.tokens_per_s == pytest.approx(10_000, rel=0.2)


def prefill_s(attention: float, tokens_per_s: float, prompt: int, cached: int) -> float:
    """The modelled engines' formula: n × (1 + (context + n ÷ 2) ÷ doubling)."""
    tokens = prompt - cached
    return tokens / tokens_per_s * (1 + (cached + tokens / 2) / attention)


def learnt(attention: float, *, tokens_per_s: float = 25_000.0, samples: int = 300, noise: float = 0.2) -> Attention:
    """What a pool learns whose rate is learnt beside it, from prompts of mixed length, some of them partly cached."""
    rng, known, rate = random.Random(3), Attention(), PrefillRate(10_000.0)
    for _ in range(samples):
        prompt = int(rng.uniform(1_000, 100_000))
        cached = int(prompt * rng.choice([0.0, 0.0, 0.5, 0.9]))
        seconds = prefill_s(attention, tokens_per_s, prompt, cached) * rng.uniform(1 - noise, 1 + noise)
        known.observe(prompt_tokens=prompt, cached_tokens=cached, seconds=seconds, tokens_per_s=rate.tokens_per_s)
        rate.observe(work_tokens=known.work(prompt) - known.work(cached), seconds=seconds)
    return known


@pytest.mark.parametrize("doubling_tokens", [15_000.0, 30_500.0, 53_000.0])
def test_the_growth_of_attention_is_learnt(doubling_tokens: float) -> None:
    assert learnt(doubling_tokens).doubling_tokens == pytest.approx(doubling_tokens, rel=0.15)


def test_attention_that_does_not_grow_is_learnt_too() -> None:
    assert learnt(1e9).doubling_tokens > 500_000


def test_attention_stays_at_the_default_until_long_prompts_had_a_worker_to_themselves() -> None:
    known = Attention()
    for _ in range(1000):
        known.observe(prompt_tokens=1000, cached_tokens=0, seconds=5.0, tokens_per_s=10_000.0)
    assert known.doubling_tokens == ATTENTION_DOUBLING_TOKENS_DEFAULT
    known.observe(prompt_tokens=90_000, cached_tokens=0, seconds=1000.0, tokens_per_s=10_000.0)
    assert known.doubling_tokens > ATTENTION_DOUBLING_TOKENS_DEFAULT / 2


@given(
    st.lists(
        st.tuples(st.integers(0, 10**7), st.integers(0, 10**7), st.floats(allow_nan=True, allow_infinity=True)),
        max_size=60,
    )
)
def test_no_sample_drives_attention_out_of_its_bounds(samples: list[tuple[int, int, float]]) -> None:
    known = Attention()
    for prompt_tokens, cached, seconds in samples:
        known.observe(prompt_tokens=prompt_tokens, cached_tokens=cached, seconds=seconds, tokens_per_s=10_000.0)
        assert ATTENTION_DOUBLING_TOKENS_MIN <= known.doubling_tokens <= ATTENTION_DOUBLING_TOKENS_MAX


@given(st.integers(0, 200_000), st.integers(0, 200_000))
def test_work_is_what_the_engines_take(cached: int, tokens: int) -> None:
    """work(prompt) − work(cached) is the formula of `simulator.fleet.hardware.GpuProfile.prefill_s` in tokens."""
    known = Attention(30_500.0)
    expected = prefill_s(30_500.0, 1.0, cached + tokens, cached)
    assert known.work(cached + tokens) - known.work(cached) == pytest.approx(expected, rel=1e-9, abs=1e-6)


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


def whole_answer(scene: Scene, seed: int, *, took_s: float, cached: int | None = 0) -> None:
    """8,000 bytes to worker 0 and back: an answer that is not streamed has no first byte."""
    reservation = scene.start_on(0, prompt(seed, 8000))
    scene.now += took_s
    outcome = Outcome(True, prompt_tokens=2000, completion_tokens=10, cached_tokens=cached)
    scene.table.release(reservation, outcome, now=scene.now)


def test_answers_that_are_not_streamed_teach_how_fast_the_pool_is_at_least() -> None:
    scene = Scene()
    for seed in range(100):
        whole_answer(scene, seed, took_s=0.04)
    rates = scene.table.state(now=scene.now).worker_prefill_tokens_per_s
    assert rates[worker_id(0)] == pytest.approx(50_000, rel=0.2)
    assert set(rates.values()) == {rates[worker_id(0)]}, "as bounds they tell no worker from another"


@pytest.mark.parametrize(("took_s", "cached"), [(5.0, 0), (0.04, None), (0.04, 2000)])
def test_a_long_answer_or_one_of_unknown_or_cached_prompt_teaches_no_rate(took_s: float, cached: int | None) -> None:
    scene = Scene()
    for seed in range(20):
        whole_answer(scene, seed, took_s=took_s, cached=cached)
    assert set(scene.table.state(now=scene.now).worker_prefill_tokens_per_s.values()) == {10_000.0}


def test_a_slow_worker_is_told_apart() -> None:
    scene = Scene()
    for seed in range(20):
        scene.finish(scene.start_on(0, prompt(2 * seed, 8000)), cached=0, ttft_s=2.0)
        scene.finish(scene.start_on(1, prompt(2 * seed + 1, 8000)), cached=0, ttft_s=0.2)
    rates = scene.table.state(now=scene.now).worker_prefill_tokens_per_s
    assert rates[worker_id(1)] > 5 * rates[worker_id(0)]
    assert worker_id(0) not in {scene.choose(prompt(seed, 8000)).worker for seed in range(100, 130)}


def test_a_worker_that_was_slow_and_gets_nothing_is_tried_again() -> None:
    scene = Scene()
    for seed in range(20):
        scene.finish(scene.start_on(0, prompt(2 * seed, 8000)), cached=0, ttft_s=2.0)
        scene.finish(scene.start_on(1, prompt(2 * seed + 1, 8000)), cached=0, ttft_s=0.2)
    scene.live({})
    slow = scene.table.state(now=scene.now).worker_prefill_tokens_per_s
    for _ in range(300):
        scene.now += 2.0
        scene.live({})
    rates = scene.table.state(now=scene.now).worker_prefill_tokens_per_s
    assert slow[worker_id(0)] < 0.2 * slow[worker_id(1)]
    assert rates[worker_id(0)] == pytest.approx(rates[worker_id(3)], rel=0.05)
    assert worker_id(0) in {scene.serve(prompt(seed, 8000)) for seed in range(100, 130)}


def test_waiting_behind_others_is_not_taken_for_slowness() -> None:
    scene = Scene()
    for round_ in range(15):
        batch = [scene.start_on(0, prompt(100 * round_ + seed, 8000)) for seed in range(4)]
        for reservation in batch:
            scene.finish(reservation, cached=0, ttft_s=0.2)
    assert scene.table.state(now=scene.now).worker_prefill_tokens_per_s[worker_id(0)] == pytest.approx(10_000, rel=0.15)

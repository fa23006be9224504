"""Answers that do not confirm what events promise cost a worker its credit (A13)."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.exact.credit import ANSWERS_MAX, OFF_S, OFF_S_MAX, STRIKES, STRIKES_UNDERRATED, WINDOW_S, Credit

BLOCK = 16


def told(credit: Credit, answers: list[tuple[int, int]], *, start: float = 0.0, every_s: float = 1.0) -> float | None:
    """When credit was lost."""
    for at, (predicted, delivered) in enumerate(answers):
        now = start + at * every_s
        if credit.judge(predicted_tokens=predicted, delivered_tokens=delivered, now=now):
            return now
    return None


def test_a_forger_is_off_after_a_handful_of_answers_within_60_s() -> None:
    lost_at = told(Credit(slack_tokens=BLOCK), [(800, 0)] * 60)
    assert lost_at == STRIKES - 1 <= WINDOW_S


def test_a_forger_of_half_its_blocks_among_honest_answers_is_off_within_60_s() -> None:
    answers = [(1600, 800) if at % 2 else (1600, 1600) for at in range(60)]
    lost_at = told(Credit(slack_tokens=BLOCK), answers)
    assert lost_at is not None and lost_at < WINDOW_S


def test_confirmed_predictions_never_cost_anything() -> None:
    credit = Credit(slack_tokens=BLOCK)
    assert told(credit, [(1600, 1600), (320, 304), (0, 0), (16, 0)] * 200) is None
    assert credit.score > 0.98


def test_evictions_now_and_then_are_forgiven() -> None:
    dice = random.Random(1)
    answers = [(1600, 0 if dice.random() < 0.1 else 1600) for _ in range(2000)]
    assert told(Credit(slack_tokens=BLOCK), answers, every_s=0.1) is None


def test_shortfalls_that_lie_minutes_apart_are_forgiven() -> None:
    assert told(Credit(slack_tokens=BLOCK), [(1600, 0)] * 50, every_s=WINDOW_S) is None


def test_equal_prompts_at_one_time_are_no_lie() -> None:
    """The first fills the cache for the others: more is delivered than was predicted."""
    answers = [(0, 160)] * 8 + [(800, 800)] * 12
    assert told(Credit(slack_tokens=BLOCK), answers * 10) is None


def test_removals_that_never_happened_cost_credit_too() -> None:
    assert told(Credit(slack_tokens=BLOCK), [(0, 1600)] * 100) == STRIKES_UNDERRATED - 1


def test_it_is_off_for_longer_each_time_and_forgives_after_good_conduct() -> None:
    credit = Credit(slack_tokens=BLOCK)
    told(credit, [(800, 0)] * STRIKES)
    first_until = credit.off_until
    assert first_until == STRIKES - 1 + OFF_S
    assert credit.is_off(now=first_until - 1) and not credit.is_off(now=first_until)
    assert not credit.judge(predicted_tokens=800, delivered_tokens=0, now=first_until - 1), "not used, not judged"
    told(credit, [(800, 0)] * STRIKES, start=first_until)
    assert credit.off_until == first_until + STRIKES - 1 + 2 * OFF_S
    told(credit, [(800, 0)] * STRIKES, start=credit.off_until + 3 * OFF_S_MAX)
    assert credit.off_until is not None and credit.lost_at is not None
    assert credit.off_until - credit.lost_at == OFF_S


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 30), st.integers(0, 1000), st.integers(0, 1000)),
        max_size=ANSWERS_MAX + 100,
    )
)
def test_sums_are_those_of_the_window(steps) -> None:
    credit = Credit(slack_tokens=BLOCK)
    now = 0.0
    seen: list[tuple[float, int, int]] = []
    for passed, predicted, delivered in steps:
        now += passed
        if credit.is_off(now=now):
            continue
        seen.append((now, predicted, delivered))
        if credit.judge(predicted_tokens=predicted, delivered_tokens=delivered, now=now):
            seen.clear()
        seen = [answer for answer in seen if answer[0] > now - WINDOW_S][-ANSWERS_MAX:]
        total = max(sum(p for _, p, _ in seen), sum(d for _, _, d in seen))
        wrong = sum(abs(p - d) for _, p, d in seen if abs(p - d) > BLOCK)
        assert credit.score == (1.0 - min(total, wrong) / total if total else 1.0)
        assert len(credit._answers) <= ANSWERS_MAX

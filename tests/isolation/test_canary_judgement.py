"""What a canary's four answers mean (S7)."""

from __future__ import annotations

import random

import pytest

from controlplane.isolation.canary import (
    ENDPOINTS,
    GREEN,
    INCONCLUSIVE,
    NOT_OFFERED,
    RED,
    Leg,
    Legs,
    body_for,
    judge,
    prompt_for,
    salts_for,
    usage_of,
)

NO, HIT = Leg(cached=0, prompt_tokens=64), Leg(cached=48, prompt_tokens=64)
SILENT = Leg(cached=None, prompt_tokens=64)
FAILED = Leg(status=500, refusal="status 500")
GUARDED = Leg(status=403, refusal="the worker's guard says no_proof", guarded=True)


@pytest.mark.parametrize(
    ("what", "legs", "guarded", "verdict"),
    [
        ("apart", Legs(NO, NO, HIT, NO), False, GREEN),
        ("apart behind a guard", Legs(NO, NO, HIT, GUARDED), True, GREEN),
        ("salts have no effect", Legs(NO, HIT, HIT, HIT), False, RED),
        ("a first use that hits", Legs(HIT), False, RED),
        ("only the unsalted meets it", Legs(NO, NO, HIT, HIT, NO), False, RED),
        ("the unsalted finds the template's head", Legs(NO, NO, HIT, Leg(cached=16), Leg(cached=16)), False, GREEN),
        ("it finds more than the head", Legs(NO, NO, HIT, HIT, Leg(cached=16)), False, RED),
        ("caching off", Legs(NO, NO, NO, NO), False, INCONCLUSIVE),
        ("usage not told", Legs(SILENT, SILENT, SILENT, SILENT), False, INCONCLUSIVE),
        ("usage told too late", Legs(SILENT, HIT, SILENT, SILENT), False, RED),
        ("worker broken", Legs(FAILED), False, INCONCLUSIVE),
        ("broken half-way", Legs(NO, FAILED, HIT, NO), False, INCONCLUSIVE),
        ("not offered", Legs(Leg(status=404)), False, NOT_OFFERED),
        ("a guard that lets the unsalted in", Legs(NO, NO, HIT, NO), True, RED),
        ("a guard nobody asked for", Legs(GUARDED), False, INCONCLUSIVE),
    ],
)
def test_it_judges(what: str, legs: Legs, guarded: bool, verdict: str) -> None:
    assert judge(legs, guarded=guarded).verdict == verdict, what


def test_nothing_but_an_own_hit_makes_it_green() -> None:
    """Whatever the other answers are."""
    answers = [NO, HIT, SILENT, FAILED, GUARDED]
    found = [
        own
        for prime in answers
        for foreign in answers
        for own in answers
        for unsalted in answers
        if judge(Legs(prime, foreign, own, unsalted), guarded=False).verdict == GREEN
    ]
    assert found and all(own is HIT for own in found)


def test_two_salts_begin_alike_and_are_never_used_twice() -> None:
    rng = random.Random(1)
    pairs = [salts_for(rng) for _ in range(100)]
    assert all(a[:21] == b[:21] and a != b and len(a) == len(b) == 43 for a, b in pairs)
    assert len({salt for pair in pairs for salt in pair}) == 200


def test_prompts_differ_from_their_first_word_and_fill_three_blocks() -> None:
    rng = random.Random(1)
    prompts = [prompt_for(16, rng) for _ in range(100)]
    assert len({prompt.split()[0] for prompt in prompts}) == 100
    assert all(len(prompt.split()) > 3 * 16 for prompt in prompts)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_body_has_a_salt_only_where_one_is_given(endpoint: str) -> None:
    assert body_for(endpoint, model="m", text="t", salt="s")["cache_salt"] == "s"
    assert "cache_salt" not in body_for(endpoint, model="m", text="t", salt=None)


@pytest.mark.parametrize(
    ("endpoint", "usage", "expected"),
    [
        ("chat", {"prompt_tokens": 70, "prompt_tokens_details": {"cached_tokens": 48}}, (70, 48)),
        ("completions", {"prompt_tokens": 70, "prompt_tokens_details": None}, (70, None)),
        ("responses", {"input_tokens": 70, "input_tokens_details": {"cached_tokens": 0}}, (70, 0)),
        ("messages", {"input_tokens": 22, "cache_read_input_tokens": 48}, (70, 48)),
        ("chat", {"prompt_tokens": 70, "prompt_tokens_details": {"cached_tokens": -1}}, (70, None)),
        ("chat", {"prompt_tokens": "x", "prompt_tokens_details": {"cached_tokens": True}}, (None, None)),
        ("chat", None, (None, None)),
    ],
)
def test_usage_is_read_in_each_dialect(endpoint: str, usage: object, expected: tuple[object, object]) -> None:
    assert usage_of(endpoint, {"usage": usage}) == expected

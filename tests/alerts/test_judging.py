"""What becomes of an alert at each reading, as a table; no database."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from controlplane.alerts.judging import (
    FIRING,
    OK,
    PENDING,
    RESOLVED,
    SILENCED,
    UNKNOWN,
    Reading,
    Standing,
    fits,
    gravest,
    next_standing,
    worst,
)

T0 = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Rule:
    comparison: str = "above"
    threshold: float = 10
    clear_at: float | None = 8
    for_s: int = 60
    on_unknown: str = "show"


def _conversation(rule: Rule, values: list[float | None], *, step_s: int = 30) -> list[str]:
    standing, said = Standing(OK, T0), []
    for index, value in enumerate(values):
        standing = next_standing(rule, standing, Reading("x", value), T0 + timedelta(seconds=index * step_s))
        said.append(standing.state)
        if standing.state == RESOLVED:
            standing = Standing(OK, T0)
    return said


@pytest.mark.parametrize(
    ("rule", "values", "states"),
    [
        (Rule(), [9, 11, 12, 12, 12], [OK, PENDING, PENDING, FIRING, FIRING]),
        (Rule(), [11, 9, 11, 11], [PENDING, OK, PENDING, PENDING]),
        (Rule(for_s=0), [11, 9, 8.5, 8, 11], [FIRING, FIRING, FIRING, RESOLVED, FIRING]),
        (Rule(for_s=0, clear_at=None), [11, 10], [FIRING, RESOLVED]),
        (Rule(comparison="below", threshold=0.5, clear_at=0.6, for_s=0), [0.4, 0.55, 0.6], [FIRING, FIRING, RESOLVED]),
        (Rule(), [None, None, 9, None], [UNKNOWN, UNKNOWN, OK, UNKNOWN]),
        (Rule(), [11, None, 11, 11, 11], [PENDING, UNKNOWN, PENDING, PENDING, FIRING]),
        (Rule(for_s=0), [11, None, None, 8], [FIRING, FIRING, FIRING, RESOLVED]),
        (Rule(on_unknown="fire"), [None, None, None], [PENDING, PENDING, FIRING]),
        (Rule(on_unknown="fire"), [None, 11, None], [PENDING, PENDING, FIRING]),
    ],
)
def test_it_follows_the_table(rule: Rule, values: list[float | None], states: list[str]) -> None:
    assert _conversation(rule, values) == states


def test_a_value_at_the_threshold_is_no_breach() -> None:
    assert _conversation(Rule(for_s=0), [10]) == [OK]


def test_a_silenced_alert_ends_as_one_that_fires() -> None:
    assert next_standing(Rule(), Standing(SILENCED, T0), Reading("x", 1), T0).state == RESOLVED
    assert next_standing(Rule(), Standing(SILENCED, T0), Reading("x", None), T0).state == SILENCED


@dataclass
class Silence:
    rule_slug: str = ""
    subject: str = ""
    tenant: str = ""
    pool: str = ""
    severity: str = ""


@pytest.mark.parametrize(
    ("silence", "does"),
    [
        (Silence(rule_slug="a"), True),
        (Silence(rule_slug="b"), False),
        (Silence(subject="llama/*"), True),
        (Silence(subject="llama/w2"), False),
        (Silence(rule_slug="a", pool="llama", severity="critical"), True),
        (Silence(rule_slug="a", tenant="acme"), False),
    ],
)
def test_a_silence_fits_when_all_it_names_fits(silence: Silence, does: bool) -> None:
    reading = Reading("llama/w1", 1, pool="llama")
    assert fits(silence, rule_slug="a", severity="critical", reading=reading) is does


def test_the_gravest_of_many_and_the_worst_value() -> None:
    assert gravest([OK, UNKNOWN, PENDING]) == PENDING and gravest([]) == OK
    assert worst(Rule(), [1, 3, 2]) == 3 and worst(Rule(comparison="below"), [1, 3]) == 1 and worst(Rule(), []) is None

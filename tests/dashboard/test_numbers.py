"""How figures are written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard import numbers


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (float("nan"), "–"), (0, "0"), (0.04567, "0.0457"), (1.5, "1.5"), (123.456, "123"), (-5, "−5")],
)
def test_it_writes_three_significant_digits(value: float | None, text: str) -> None:
    assert numbers.significant(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (999, "999"),
        (999.7, "1 k"),
        (12_400, "12.4 k"),
        (999_950, "1 M"),
        (3_100_000, "3.1 M"),
        (2e9, "2 G"),
    ],
)
def test_it_writes_tokens_in_si(value: float | None, text: str) -> None:
    assert numbers.tokens(value) == text


@pytest.mark.parametrize(
    ("value_ms", "text"),
    [
        (None, "–"),
        (0, "0 ms"),
        (412.3, "412 ms"),
        (999.6, "1 s"),
        (1240, "1.2 s"),
        (45_000, "45 s"),
        (210_000, "3.5 min"),
    ],
)
def test_it_writes_ms_below_a_second_and_s_above(value_ms: float | None, text: str) -> None:
    assert numbers.milliseconds(value_ms) == text


def test_it_writes_shares_as_percent_with_one_decimal() -> None:
    assert numbers.percent(0.6128) == "61.3 %"
    assert numbers.percent(None) == "–"


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_it_writes_any_float_without_exponent_or_error(value: float) -> None:
    for write in (numbers.significant, numbers.tokens, numbers.count, numbers.milliseconds, numbers.percent):
        text = write(value)
        assert text
        assert "e+" not in text and "nan" not in text and "inf" not in text

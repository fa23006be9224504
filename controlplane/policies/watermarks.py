"""The rule of a watermark: 0 < low < high ≤ 1, in words (S0.4). No database."""

from __future__ import annotations

import math
from dataclasses import dataclass

from controlplane.errors import FieldError, Invalid

USE_MIN = 0.01
"""KV use below 1 % is the noise of an idle worker."""
DWELL_S_MAX = 3600.0


@dataclass(frozen=True, slots=True)
class WatermarkValues:
    low: float
    high: float
    dwell_s: float


def checked_watermark(*, low: object, high: object, dwell_s: object) -> WatermarkValues:
    """The values as numbers. Raises Invalid with an error in words at each offending field."""
    errors: list[FieldError] = []
    low_use = _use("low", low, errors)
    high_use = _use("high", high, errors)
    dwell = _dwell(dwell_s, errors)
    if low_use is not None and high_use is not None and low_use >= high_use:
        errors.append(FieldError(field="low", message="Low must be below high."))
    if errors or low_use is None or high_use is None or dwell is None:
        raise Invalid(errors[0]["message"], errors=errors)
    return WatermarkValues(low_use, high_use, dwell)


def _use(field: str, value: object, errors: list[FieldError]) -> float | None:
    """KV use as a share; None (and an error added) when it is not one."""
    number = _number(field, value, errors)
    if number is None or USE_MIN <= number <= 1:
        return number
    errors.append(
        FieldError(field=field, message=f"{field.capitalize()} must be between {USE_MIN} and 1 (85 % is 0.85).")
    )
    return None


def _dwell(value: object, errors: list[FieldError]) -> float | None:
    number = _number("dwell_s", value, errors)
    if number is None or 0 <= number <= DWELL_S_MAX:
        return number
    errors.append(FieldError(field="dwell_s", message=f"Dwell must be between 0 and {DWELL_S_MAX:.0f} seconds."))
    return None


def _number(field: str, value: object, errors: list[FieldError]) -> float | None:
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
    try:
        finite = number is not None and math.isfinite(number)
    except OverflowError:  # an integer beyond any float
        finite = False
    if number is None or not finite:
        errors.append(FieldError(field=field, message=f"{field.capitalize().replace('_s', '')} must be a number."))
        return None
    return float(number)

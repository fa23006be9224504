"""Where daily figures are going: least squares with a prediction interval. Pure.

    y = a + b·x over whole days;  the next day x₀ lies, with 95 % confidence, within
    ŷ(x₀) ± t(0.975, n − 2) · s · √(1 + 1/n + (x₀ − x̄)² / Σ(x − x̄)²),  s² = Σ residual² ÷ (n − 2)

(Draper & Smith, Applied Regression Analysis, 3rd edition, section 3.1: a single future observation.) A weekly rhythm
is not modelled: it widens the interval instead of being taken for growth. The t quantile is the expansion 26.7.5 of
Abramowitz & Stegun, Handbook of Mathematical Functions: for 12 degrees of freedom or more it is right to three digits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from statistics import NormalDist, fmean
from typing import Any

DAYS_MIN = 14
"""Two weeks: with fewer a weekly rhythm cannot be told from growth."""
HORIZON_DAYS = 90
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Line:
    """A fitted line; x is days after `origin`."""

    origin: date
    last: date
    intercept: float
    slope: float
    """Units a day."""
    n: int
    mean_x: float
    sxx: float
    sigma: float

    def at(self, day: date) -> tuple[float, float, float]:
        """(expected, low, high) of one day."""
        x = (day - self.origin).days
        middle = self.intercept + self.slope * x
        spread = math.sqrt(1 + 1 / self.n + (x - self.mean_x) ** 2 / self.sxx)
        half = t_quantile(0.5 + CONFIDENCE / 2, self.n - 2) * self.sigma * spread
        return middle, middle - half, middle + half

    def slope_interval(self) -> tuple[float, float]:
        half = t_quantile(0.5 + CONFIDENCE / 2, self.n - 2) * self.sigma / math.sqrt(self.sxx)
        return self.slope - half, self.slope + half


def fit(points: Sequence[tuple[date, float]]) -> Line | None:
    """None with fewer than DAYS_MIN days."""
    if len(points) < DAYS_MIN:
        return None
    origin = points[0][0]
    xs = [float((day - origin).days) for day, _ in points]
    ys = [value for _, value in points]
    mean_x, mean_y = fmean(xs), fmean(ys)
    sxx = sum((x - mean_x) ** 2 for x in xs)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / sxx
    intercept = mean_y - slope * mean_x
    residual = sum((y - intercept - slope * x) ** 2 for x, y in zip(xs, ys, strict=True))
    return Line(
        origin=origin, last=points[-1][0], intercept=intercept, slope=slope, n=len(points), mean_x=mean_x, sxx=sxx,
        sigma=math.sqrt(residual / (len(points) - 2)),
    )  # fmt: skip


def forecast(
    points: Sequence[tuple[date, float]],
    *,
    measure: str,
    subject: str,
    limit: float | None,
    rising: bool = True,
    most: float = math.inf,
    left_out: Sequence[date] = (),
) -> dict[str, Any]:
    """The trend of a daily figure, and when it reaches its limit from below (`rising`) or from above.

    `reached`: the day the line gets there; `earliest` and `latest`: the days the interval's edges do; null = not within
    HORIZON_DAYS. `enough` is false with fewer than DAYS_MIN days: nothing is forecast then. What is shown ahead lies
    between 0 and `most`; `left_out` are days that stand out and are no part of the trend.
    """
    line = fit(points)
    head: dict[str, Any] = {
        "measure": measure,
        "subject": subject,
        "limit": limit,
        "days": len(points),
        "days_min": DAYS_MIN,
    }
    head |= {"left_out": [day.isoformat() for day in left_out]}
    if line is None:
        return head | {"enough": False}
    future = [line.last + timedelta(days=n) for n in range(1, HORIZON_DAYS + 1)]
    low, high = line.slope_interval()
    in_30_days = line.last + timedelta(days=30)

    def within(values: Sequence[float]) -> list[float]:
        return [min(most, max(0.0, value)) for value in values]

    return head | {
        "enough": True,
        "slope_per_day": line.slope,
        "slope_low": low,
        "slope_high": high,
        "trend": "rises" if low > 0 else "falls" if high < 0 else "level",
        "now": within(line.at(line.last))[0],
        "in_30_days": dict(zip(("expected", "low", "high"), within(line.at(in_30_days)), strict=True)),
        "horizon_days": HORIZON_DAYS,
        "confidence": CONFIDENCE,
        **_crossings(line, future, limit, rising),
        "points": [[day.isoformat(), value] for day, value in points],
        "line": [[day.isoformat(), *within(line.at(day))] for day in [line.last, *future[6::7]]],
    }


def _crossings(line: Line, future: Sequence[date], limit: float | None, rising: bool) -> dict[str, str | None]:
    """Days on which the expected value and each edge of the interval pass the limit."""
    if limit is None:
        return {"reached": None, "earliest": None, "latest": None}
    wrong_edge, right_edge = (2, 1) if rising else (1, 2)

    def first(edge: int) -> str | None:
        for day in [line.last, *future]:
            value = line.at(day)[edge]
            if value >= limit if rising else value <= limit:
                return day.isoformat()
        return None

    return {"reached": first(0), "earliest": first(wrong_edge), "latest": first(right_edge)}


def t_quantile(p: float, degrees: int) -> float:
    z, v = NormalDist().inv_cdf(p), float(degrees)
    g1 = (z**3 + z) / 4
    g2 = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    g3 = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    g4 = (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160
    return z + g1 / v + g2 / v**2 + g3 / v**3 + g4 / v**4

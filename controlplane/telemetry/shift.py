"""How much later or sooner: the shift between two samples of durations, from their histograms. Pure.

The estimate is Hodges and Lehmann's: the median of all differences b − a of one value of each sample. Its interval is
the one that Mann and Whitney's test does not refuse, after Moses: with n and m values, N = n + m, the differences in
order and

    C = nm/2 − z · √( nm/12 · (N + 1 − Σ(t³ − t) / (N(N − 1))) )        t: number of equal values, of each value

it reaches from the C-th difference to the C-th from the end (Hollander, Wolfe and Chicken, Nonparametric Statistical
Methods, 3rd ed., 4.2 and 4.3; the correction for ties is Lehmann's, Nonparametrics, 1.2). No form of the distribution
is assumed beyond that one is the other, shifted.

Cohorts are put together by the mean of their shifts weighed by nm/(n + m), which is in proportion to the inverse of
their variance where their spread is alike; their errors are taken for independent.

Values are known to the histogram's error alone, ±2.5 %: every interval is wider by that share of both medians, so that
no difference is claimed which rounding could make. Requests that wait for each other are not independent: the true
interval is wider in a fleet that queues.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from router.contract.histogram import GAMMA, INDEX_MIN, quantile

Z: float = 1.959964
"""Of 95 %."""
SAMPLES_MIN = 20
"""In each sample: below it the normal approximation of the rank statistic is poor, and so is any claim."""
VALUE_ERROR = (GAMMA - 1) / (GAMMA + 1)
"""Of a value that is known by its bucket alone."""
_DECIMALS = 6
_EXACT_MS = 1e-7
_STEPS_MAX = 60
"""Halvings of the range of differences at most."""


@dataclass(frozen=True, slots=True)
class Shift:
    """Milliseconds; negative = sooner."""

    ms: float
    low_ms: float
    high_ms: float
    before_ms: float
    """Median."""
    after_ms: float
    before_count: int
    after_count: int

    @property
    def told(self) -> str:
        """`sooner`, `later` or `same`: whether the interval leaves out zero."""
        return "sooner" if self.high_ms < 0 else "later" if self.low_ms > 0 else "same"

    @property
    def share(self) -> float | None:
        """Of the median before."""
        return self.ms / self.before_ms if self.before_ms else None


def shift_of(before: Mapping[int, int], after: Mapping[int, int]) -> Shift | None:
    """Of two histograms (bucket → count). None where either has fewer than SAMPLES_MIN values: too few to say."""
    a, b = _sorted(before), _sorted(after)
    n, m = sum(count for _, count in a), sum(count for _, count in b)
    if n < SAMPLES_MIN or m < SAMPLES_MIN:
        return None
    low_rank = max(1, math.floor(n * m / 2 - Z * math.sqrt(_variance(a, b, n, m))))
    differences = Differences(a, b)
    before_ms, after_ms = quantile(before, 0.5) or 0.0, quantile(after, 0.5) or 0.0
    blur_ms = VALUE_ERROR * (before_ms + after_ms)
    return Shift(
        ms=differences.median(),
        low_ms=differences.at(low_rank) - blur_ms,
        high_ms=differences.at(n * m + 1 - low_rank) + blur_ms,
        before_ms=before_ms,
        after_ms=after_ms,
        before_count=n,
        after_count=m,
    )


def together(shifts: Iterable[Shift]) -> Shift | None:
    """The weighed mean of the cohorts' shifts; None without any."""
    found = list(shifts)
    if not found:
        return None
    weights = [each.before_count * each.after_count / (each.before_count + each.after_count) for each in found]
    whole = sum(weights)

    def mean(values: Iterable[float]) -> float:
        return sum(weight * value for weight, value in zip(weights, values, strict=True)) / whole

    blurs = [VALUE_ERROR * (each.before_ms + each.after_ms) for each in found]
    halves = [(each.high_ms - each.low_ms) / 2 - blur for each, blur in zip(found, blurs, strict=True)]
    half = math.sqrt(sum((weight * half) ** 2 for weight, half in zip(weights, halves, strict=True))) / whole
    ms, blur_ms = mean(each.ms for each in found), mean(blurs)
    return Shift(
        ms=ms,
        low_ms=ms - half - blur_ms,
        high_ms=ms + half + blur_ms,
        before_ms=mean(each.before_ms for each in found),
        after_ms=mean(each.after_ms for each in found),
        before_count=sum(each.before_count for each in found),
        after_count=sum(each.after_count for each in found),
    )


class Differences:
    """All differences b − a of two weighed samples, in order, without making the list."""

    def __init__(self, a: Sequence[tuple[float, int]], b: Sequence[tuple[float, int]]) -> None:
        self._a = a
        self._values = [value for value, _ in b]
        self._sums = [0, *accumulate(count for _, count in b)]
        self._low = self._values[0] - a[-1][0]
        self._high = self._values[-1] - a[0][0]
        self._count = sum(count for _, count in a) * self._sums[-1]

    def at(self, rank: int) -> float:
        """The difference of this rank, from 1, to the nanosecond."""
        low, high = self._low, self._high
        if self._up_to(low) >= rank:
            return round(low, _DECIMALS)
        for _ in range(_STEPS_MAX):
            middle = (low + high) / 2
            if high - low < _EXACT_MS:
                break
            if self._up_to(middle) >= rank:
                high = middle
            else:
                low = middle
        return round(high, _DECIMALS)

    def median(self) -> float:
        """The middle one, or the mean of the two in the middle."""
        half = (self._count + 1) // 2
        return self.at(half) if self._count % 2 else (self.at(half) + self.at(half + 1)) / 2

    def _up_to(self, limit: float) -> int:
        values, sums = self._values, self._sums
        # A hair above, so that a difference is not lost to the rounding of its own sum.
        limit += 1e-7
        return sum([count * sums[bisect_right(values, value + limit)] for value, count in self._a])


def _sorted(buckets: Mapping[int, int]) -> list[tuple[float, int]]:
    """(value in ms, count), ascending: each bucket by its geometric middle, as `histogram.quantile` has it."""
    return [(0.0 if at == INDEX_MIN else GAMMA ** (at - 0.5), buckets[at]) for at in sorted(buckets) if buckets[at] > 0]


def _variance(a: Sequence[tuple[float, int]], b: Sequence[tuple[float, int]], n: int, m: int) -> float:
    """Of Mann and Whitney's count, less what ties take away."""
    tied: dict[float, int] = {}
    for value, count in (*a, *b):
        tied[value] = tied.get(value, 0) + count
    whole = n + m
    ties = sum(t**3 - t for t in tied.values()) / (whole * (whole - 1))
    return max(0.0, n * m / 12 * (whole + 1 - ties))

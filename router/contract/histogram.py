"""Mergeable log-bucket histogram: the one form in which durations travel, are stored and are summed.

Bucket i holds values in (GAMMA**(i-1), GAMMA**i]; a quantile is the bucket's geometric middle, so its relative
error is at most 2.5 % (the DDSketch bound, Masson et al., VLDB 2019: alpha = (gamma-1)/(gamma+1)). Merging is
adding counts, which is exact; quantiles are never stored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

GAMMA: Final = 1.05
_LOG_GAMMA: Final = math.log(GAMMA)
INDEX_MIN: Final = -150
"""GAMMA**-150 = 0.0007: everything at or below shares one bucket, zero included."""
INDEX_MAX: Final = 450
"""GAMMA**450 = 3.4e9: everything above shares one bucket. 600 buckets bound a histogram."""

_LOWEST, _HIGHEST = GAMMA**INDEX_MIN, GAMMA**INDEX_MAX

Buckets = dict[int, int]
"""Bucket index → count; absent = 0."""


def bucket_of(value: float) -> int:
    """Index for a non-negative finite value. Raises ValueError for NaN, infinite or negative values."""
    if not 0 <= value < math.inf:
        raise ValueError(f"histogram value out of range: {value}")
    if value <= _LOWEST:
        return INDEX_MIN
    if value > _HIGHEST:
        return INDEX_MAX
    return math.ceil(math.log(value) / _LOG_GAMMA)


def observe(buckets: Buckets, value: float) -> None:
    index = bucket_of(value)
    buckets[index] = buckets.get(index, 0) + 1


def merge(into: Buckets, other: Mapping[int, int]) -> None:
    for index, count in other.items():
        into[index] = into.get(index, 0) + count


def total(buckets: Mapping[int, int]) -> int:
    return sum(buckets.values())


def quantile(buckets: Mapping[int, int], q: float) -> float | None:
    """The q-quantile (0 ≤ q ≤ 1) or None when nothing was observed: unknown, never 0."""
    count = total(buckets)
    if count == 0:
        return None
    rank = max(1, math.ceil(q * count))
    seen = 0
    index = INDEX_MIN
    for index in sorted(buckets):
        seen += buckets[index]
        if seen >= rank:
            break
    return 0.0 if index == INDEX_MIN else GAMMA ** (index - 0.5)

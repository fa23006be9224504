"""Do samples of one arm tend to be smaller than those of another? Pure; no distribution is assumed.

AUC = P(a < b) + ½ P(a = b) over all pairs: the Mann–Whitney statistic divided by the number of pairs
(H. B. Mann, D. R. Whitney, Ann. Math. Stat. 18 (1947) 50–60). 0.5 = no tendency, 1 = every a is below every b.

The interval is R. G. Newcombe's method 5 (Statist. Med. 25 (2006) 559–573): those θ whose distance to the AUC is at
most z standard errors, with Hanley and McNeil's variance taken at θ itself and both arms' sizes replaced by their mean:

    V(θ) = θ(1 − θ) [1 + N* ((1 − θ)/(2 − θ) + θ/(1 + θ))] ÷ (m n),   N* = (m + n)/2 − 1

It stays within 0 … 1 and has width also where every a is below every b.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

CONFIDENCE = 0.99
"""An audit accuses somebody: one false alarm in two hundred."""
_STEPS = 60
"""Halvings of an interval of length 1: below any float's precision."""


@dataclass(frozen=True, slots=True)
class Auc:
    value: float
    low: float
    high: float
    """Confidence interval."""


def auc_of(lower: Sequence[float], upper: Sequence[float], *, confidence: float = CONFIDENCE) -> Auc:
    """How surely samples of `lower` lie below those of `upper`. Raises ValueError for an empty arm."""
    if not lower or not upper:
        raise ValueError("both arms need samples")
    value = _pairs_below(lower, upper) / (len(lower) * len(upper))
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    low = _limit(value, 0.0, len(lower), len(upper), z)
    high = _limit(value, 1.0, len(lower), len(upper), z)
    return Auc(value, low, high)


def _pairs_below(lower: Sequence[float], upper: Sequence[float]) -> float:
    """Pairs in which the first arm's sample is the smaller one; ties count half."""
    ordered = sorted(upper)
    count = len(ordered)
    return sum(count - (bisect_left(ordered, x) + bisect_right(ordered, x)) / 2 for x in lower)


def _limit(value: float, end: float, m: int, n: int, z: float) -> float:
    """The θ between the AUC and `end` at which the distance is z standard errors, or `end`."""
    inside, outside = value, end
    for _ in range(_STEPS):
        middle = (inside + outside) / 2
        if abs(middle - value) <= z * math.sqrt(_variance(middle, m, n)):
            inside = middle
        else:
            outside = middle
    return inside


def _variance(theta: float, m: int, n: int) -> float:
    star = (m + n) / 2 - 1
    spread = 1 + star * ((1 - theta) / (2 - theta) + theta / (1 + theta))
    return theta * (1 - theta) * spread / (m * n)

"""Days that do not fit the others, by the modified z-score. Pure.

    M = 0.6745 · (x − median) ÷ MAD,  MAD = median |x − median|;  |M| > 3.5 stands out

(Iglewicz & Hoaglin, How to Detect and Handle Outliers, ASQC 1993, section 3.3.) Unlike mean and deviation, median and
MAD are not moved by the very days that are looked for. Quantiles come from buckets, so more than half of the days may
be equal and MAD 0: then M = (x − median) ÷ (1.2533 · mean |x − median|), 1.2533 = √(π/2) making both agree for a normal
distribution. Where growth is certain it is taken out first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date
from statistics import fmean, median
from typing import Any

from controlplane.reports.figures.trend import fit

LIMIT = 3.5
RELEVANT = 0.05
"""Of the usual value: smaller differences are none to look into, however rare."""
DAYS_MIN = 7
SHOWN = 20
MEASURES = {
    "requests": "requests",
    "prompt_tokens": "prompt tokens",
    "hit_share": "hit-token share",
    "goodput": "goodput",
    "ttft_hit_p95_ms": "TTFT p95 of hits",
    "ttft_miss_p95_ms": "TTFT p95 of misses",
}


def anomalies(days: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of whole days, the most striking first."""
    found: list[dict[str, Any]] = []
    for measure, words in MEASURES.items():
        points = [
            (date.fromisoformat(row["day"]), float(row[measure]))
            for row in days
            if row["complete"] and row[measure] is not None
        ]
        found += [
            {"day": day.isoformat(), "measure": measure, "words": words, "value": value, "usual": usual, "score": score}
            for day, value, usual, score in outliers(points)
        ]
    return sorted(found, key=lambda row: (-abs(row["score"]), row["day"]))[:SHOWN]


def outliers(points: Sequence[tuple[date, float]]) -> list[tuple[date, float, float, float]]:
    """(day, value, usual value, score) of the days that stand out; none with fewer than DAYS_MIN days."""
    if len(points) < DAYS_MIN:
        return []
    expected = _expected(points)
    rest = [value - usual for (_, value), usual in zip(points, expected, strict=True)]
    middle = median(rest)
    spread = median(abs(value - middle) for value in rest) / 0.6745
    spread = spread or fmean(abs(value - middle) for value in rest) * math.sqrt(math.pi / 2)
    if spread == 0:
        return []
    scored = [
        (day, value, usual + middle, (left - middle) / spread)
        for (day, value), usual, left in zip(points, expected, rest, strict=True)
    ]
    return [row for row in scored if abs(row[3]) > LIMIT and abs(row[1] - row[2]) >= RELEVANT * abs(row[2])]


def _expected(points: Sequence[tuple[date, float]]) -> list[float]:
    """The trend where its interval excludes zero, else level."""
    line = fit(points)
    if line is None:
        return [0.0] * len(points)
    low, high = line.slope_interval()
    return [line.at(day)[0] if low > 0 or high < 0 else 0.0 for day, _ in points]

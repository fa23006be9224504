"""A worker's costs from times that were measured: prefill by least squares, decode and overhead by what is left.

    time to a first token = overhead + steps × step + n ÷ rate × (1 + (context + n ÷ 2) ÷ doubling)

for n tokens behind `context` cached ones, in `steps` chunks of the batch budget. The same form as
`hardware.GpuProfile.prefill_s`. Terms that a few or noisy points make negative are left out and fitted again.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NEVER_DOUBLES_TOKENS = 10**9
"""Stands for an attention term that no point shows."""


@dataclass(frozen=True, slots=True)
class PrefillPoint:
    """One prompt's time to its first token on an otherwise idle worker, or the mean of many."""

    new_tokens: float
    context_tokens: float
    seconds: float


@dataclass(frozen=True, slots=True)
class PrefillFit:
    overhead_s: float
    """Of a request, beside its steps."""
    tokens_per_s: float
    attention_doubling_tokens: int
    points: int
    error: float
    """Median of |fitted − measured| ÷ measured."""

    def seconds(self, new_tokens: float, context_tokens: float) -> float:
        slow_down = 1 + (context_tokens + new_tokens / 2) / self.attention_doubling_tokens
        return self.overhead_s + new_tokens / self.tokens_per_s * slow_down


def fit_prefill(
    points: Sequence[PrefillPoint], *, step_s: float, batch_tokens: int, doubling_tokens: int | None = None
) -> PrefillFit | None:
    """None where the points show no cost of a token. `step_s` is known: what a step costs without any prefill; with
    `doubling_tokens` attention is, too: mean lengths cannot show it, since it grows with their squares.

    Points of equal lengths count as their median, each weighed by its own time, so that errors are shares.
    """
    medians = _medians([_without_steps(point, step_s, batch_tokens) for point in points])
    medians = [point for point in medians if point.seconds > 0]
    for models in MODELS:
        allowed = [terms for terms in models if doubling_tokens is None or ATTENTION not in terms]
        fits = [fit for terms in allowed if (fit := _solved(medians, terms, doubling_tokens)) is not None]
        if fits:
            return min(fits, key=lambda fit: fit.error)
    return None


def _without_steps(point: PrefillPoint, step_s: float, batch_tokens: int) -> PrefillPoint:
    steps = max(1, math.ceil(point.new_tokens / batch_tokens))
    return PrefillPoint(point.new_tokens, point.context_tokens, point.seconds - steps * step_s)


def _medians(points: Sequence[PrefillPoint]) -> list[PrefillPoint]:
    by_lengths: dict[tuple[float, float], list[float]] = {}
    for point in points:
        by_lengths.setdefault((point.new_tokens, point.context_tokens), []).append(point.seconds)
    return [PrefillPoint(*lengths, statistics.median(seconds)) for lengths, seconds in by_lengths.items()]


OVERHEAD, TOKEN, ATTENTION = "overhead", "token", "attention"
MODELS: tuple[tuple[tuple[str, ...], ...], ...] = (
    ((OVERHEAD, TOKEN, ATTENTION),),
    ((OVERHEAD, TOKEN), (TOKEN, ATTENTION)),
    ((TOKEN,),),
)
"""The richest first; of equally rich ones the nearer to the points."""


def _solved(points: Sequence[PrefillPoint], terms: Sequence[str], doubling_tokens: int | None) -> PrefillFit | None:
    """None where a coefficient is not positive, or as many terms as points would fit noise."""
    if len(points) < len(terms) or len(points) == len(terms) > 1:
        return None
    values = [[_value(point, term, doubling_tokens) / point.seconds for term in terms] for point in points]
    found, _, rank, _ = np.linalg.lstsq(np.array(values), np.ones(len(points)), rcond=None)
    return _fit(found, terms, points, doubling_tokens) if rank == len(terms) and (found > 0).all() else None


def _value(point: PrefillPoint, term: str, doubling_tokens: int | None) -> float:
    if term == OVERHEAD:
        return 1.0
    attention = point.new_tokens * (point.context_tokens + point.new_tokens / 2)
    if term == ATTENTION:
        return attention
    return point.new_tokens + (attention / doubling_tokens if doubling_tokens else 0.0)


def _fit(
    found: NDArray[np.float64], terms: Sequence[str], points: Sequence[PrefillPoint], doubling_tokens: int | None
) -> PrefillFit:
    cost = dict(zip(terms, map(float, found), strict=True))
    doubling = cost[TOKEN] / cost[ATTENTION] if ATTENTION in cost else doubling_tokens or NEVER_DOUBLES_TOKENS
    fit = PrefillFit(
        overhead_s=cost.get(OVERHEAD, 0.0),
        tokens_per_s=1 / cost[TOKEN],
        attention_doubling_tokens=max(1, round(min(doubling, NEVER_DOUBLES_TOKENS))),
        points=len(points),
        error=0.0,
    )
    errors = [abs(fit.seconds(each.new_tokens, each.context_tokens) / each.seconds - 1) for each in points]
    return PrefillFit(
        fit.overhead_s, fit.tokens_per_s, fit.attention_doubling_tokens, fit.points, statistics.median(errors)
    )

"""The guard of a roll-out: routers with the candidate against the others, or against the time before. Pure.

A breach must be certain, since the comparison is repeated every few seconds; a pass must rest on enough requests.

    errors   the candidate's error share is certainly above the others' + error_share_rise_max
    ttft     certainly more than 5 % of its first tokens come later than the others' p95 × ttft_p95_ratio_max
    hits     its hit-token share is below the others' by more than hit_share_drop_max, on requests_min requests

Certainly: so many would come by chance, at the allowed share, less than once in 740 looks (the exact binomial tail;
three standard deviations of a normal one). Looks at one growing sum are far from independent, and a healthy stage keeps
the limits' distance, so it is rarely taken for a breach however long it lasts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from router.contract.histogram import bucket_of, quantile, total

CHANCE_MAX = 0.00135
TERMS_MAX = 100_000
"""Of the binomial tail; its terms fall quickly, and end long before."""
OTHERS_MIN = 100
"""First tokens of the others before their p95 is taken for one."""
TTFT_TAIL = 0.05
"""Share of requests that are slower than the p95 by its definition."""


@dataclass(frozen=True, slots=True)
class Limits:
    ttft_p95_ratio_max: float = 1.25
    error_share_rise_max: float = 0.01
    hit_share_drop_max: float = 0.05
    requests_min: int = 200
    """Of the candidate in one stage, before it may go on."""


@dataclass(slots=True)
class Arm:
    requests: int = 0
    errors: int = 0
    hit_tokens: int = 0
    hit_prompt_tokens: int = 0
    ttft: dict[int, int] = field(default_factory=dict)

    @property
    def error_share(self) -> float | None:
        return self.errors / self.requests if self.requests else None

    @property
    def hit_share(self) -> float | None:
        return self.hit_tokens / self.hit_prompt_tokens if self.hit_prompt_tokens else None

    @property
    def ttft_p95_ms(self) -> float | None:
        return quantile(self.ttft, 1 - TTFT_TAIL)


State = Literal["breach", "pass", "wait"]


@dataclass(frozen=True, slots=True)
class Verdict:
    state: State
    sentence: str
    breached: tuple[str, ...] = ()
    """Of: errors, ttft, hits."""


def judge(candidate: Arm, others: Arm, limits: Limits) -> Verdict:
    """`others` without requests: nothing to compare with, so only errors are judged, against none."""
    breaches = {
        name: words
        for name, words in (
            ("errors", _errors(candidate, others, limits)),
            ("ttft", _ttft(candidate, others, limits)),
            ("hits", _hits(candidate, others, limits)),
        )
        if words
    }
    if breaches:
        return Verdict("breach", "; ".join(breaches.values()) + ".", tuple(breaches))
    if candidate.requests < limits.requests_min:
        return Verdict("wait", f"Too few requests to judge: {candidate.requests} of {limits.requests_min}.")
    return Verdict("pass", f"Within its limits after {candidate.requests} requests.")


def certainly_above(count: int, out_of: int, share: float) -> bool:
    """Whether `count` of `out_of` or more are too many to come by chance when each comes with probability `share`."""
    if count <= out_of * share:
        return False
    return share <= 0 or _tail(count, out_of, min(share, 1.0)) < CHANCE_MAX


def _tail(count: int, out_of: int, share: float) -> float:
    """P(X ≥ count) of a binomial X, for a count above its mean: the terms fall from the first on."""
    if share >= 1:
        return 1.0
    log_term = (
        math.lgamma(out_of + 1) - math.lgamma(count + 1) - math.lgamma(out_of - count + 1)
        + count * math.log(share) + (out_of - count) * math.log1p(-share)
    )  # fmt: skip
    term, tail = math.exp(log_term), 0.0
    for number in range(count, min(out_of, count + TERMS_MAX) + 1):
        tail += term
        if term < tail * 1e-12:
            break
        term *= (out_of - number) / (number + 1) * share / (1 - share)
    return tail


def later_than(buckets: Mapping[int, int], limit_ms: float) -> int:
    """First tokens in buckets that lie wholly above the limit."""
    edge = bucket_of(limit_ms)
    return sum(count for index, count in buckets.items() if index > edge)


def _errors(candidate: Arm, others: Arm, limits: Limits) -> str:
    allowed = (others.error_share or 0.0) + limits.error_share_rise_max
    if not certainly_above(candidate.errors, candidate.requests, allowed):
        return ""
    return f"{candidate.errors} of {candidate.requests} requests failed, more than {allowed:.1%}"


def _ttft(candidate: Arm, others: Arm, limits: Limits) -> str:
    p95_ms = others.ttft_p95_ms
    if p95_ms is None or total(others.ttft) < OTHERS_MIN:
        return ""
    limit_ms = p95_ms * limits.ttft_p95_ratio_max
    seen, late = total(candidate.ttft), later_than(candidate.ttft, limit_ms)
    if not certainly_above(late, seen, TTFT_TAIL):
        return ""
    return f"{late} of {seen} first tokens came later than {limit_ms:,.0f} ms, {limits.ttft_p95_ratio_max:g} × the p95"


def _hits(candidate: Arm, others: Arm, limits: Limits) -> str:
    share, usual = candidate.hit_share, others.hit_share
    if share is None or usual is None or candidate.requests < limits.requests_min:
        return ""
    if usual - share <= limits.hit_share_drop_max:
        return ""
    return f"the hit-token share is {share:.1%} against {usual:.1%}"

"""`python -m simulator goodput`: the default policy over 18 set-ups, beside the other rules and a greedy oracle.

Run on the parts of the traces that the routing core was not designed with (`sweep.UNSEEN`), and on dice of their own
for the generated workloads. Nothing is tuned by trace: one policy, its default parameters.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from simulator.fleet.policies import ORACLE, POLICIES
from simulator.fleet.sweep import UNSEEN, Case
from simulator.fleet.table import Row

OURS, BASELINE, GREEDY = "tidemark", "round_robin", "longest_prefix"
COMPARED = tuple(policy for policy in POLICIES if policy != "tidemark_exact")
"""The default and the other rules; the same core with KV events is no other rule."""
WORKLOADS = ("kb8k", "weka", "conversation", "toolagent")
SETUPS = (
    *((trace, workers, load) for trace in WORKLOADS for workers, load in ((4, 0.3), (16, 0.6), (64, 0.9))),
    *((trace, workers, load) for trace in ("weka", "conversation") for workers, load in ((4, 0.9), (16, 0.9))),
    ("kb8k", 4, 0.9),
    ("toolagent", 16, 0.9),
)
REQUESTS = {4: 1_500, 16: 3_000, 64: 7_500}
"""A run, by workers: about a hundred a worker, so that caches turn over."""
MEAN_MIN, WORST_MIN = 1.0, 0.85
"""Goodput ÷ the oracle's, in the mean and in the worst set-up."""
SAME_HITS = 0.01
"""Hit-token shares this near count as equal."""
EVICTIONS_SHARE_MAX = 0.5
FEW_EVICTIONS = 1.0
"""Evicted blocks a minute and worker below which there is nothing to compare."""


@dataclass(frozen=True, slots=True)
class Bar:
    name: str
    ours: float | None
    """None = nothing to compare."""
    bar: str
    ok: bool | None


def cases(*, seeds: Sequence[int], profile: str, policies: Sequence[str] = COMPARED) -> Iterator[Case]:
    for trace, workers, load in SETUPS:
        for policy in policies:
            for seed in seeds:
                yield Case(trace, workers, load, policy, seed, profile, REQUESTS[workers], UNSEEN)


def bars(rows: Sequence[Row]) -> list[Bar]:
    """What the default policy reaches. Rows of at least it, round robin and the oracle."""
    ours = {(row.trace, row.workers, row.load): row for row in rows if row.policy == OURS}
    ratios = [row.goodput_of_oracle for row in ours.values() if row.goodput_of_oracle is not None]
    means = _means(rows)
    others = {policy: value for policy, value in means.items() if policy not in (OURS, ORACLE)}
    best = max(others, key=others.__getitem__)
    slower = _slower_than_round_robin(rows, ours)
    evictions = _evictions(rows, ours)
    return [
        Bar("goodput ÷ oracle, mean", means[OURS], f"≥ {MEAN_MIN}", means[OURS] >= MEAN_MIN),
        Bar("goodput ÷ oracle, worst", min(ratios), f"≥ {WORST_MIN}", min(ratios) >= WORST_MIN),
        Bar("mean ÷ the best other rule's", means[OURS] / others[best], f"≥ 1 ({best})", means[OURS] >= others[best]),
        Bar("set-ups with a TTFT p95 above round robin's", float(len(slower)), "0", not slower),
        Bar(
            f"evictions ÷ {GREEDY}'s at equal hits, mean",
            statistics.mean(evictions) if evictions else None,
            f"≤ {EVICTIONS_SHARE_MAX}",
            statistics.mean(evictions) <= EVICTIONS_SHARE_MAX if evictions else None,
        ),
    ]


Key = tuple[str, int, float]


def _means(rows: Sequence[Row]) -> dict[str, float]:
    ratios: dict[str, list[float]] = {}
    for row in rows:
        if row.goodput_of_oracle is not None:
            ratios.setdefault(row.policy, []).append(row.goodput_of_oracle)
    return {policy: statistics.mean(values) for policy, values in ratios.items()}


def _slower_than_round_robin(rows: Sequence[Row], ours: dict[Key, Row]) -> list[Key]:
    found = []
    for row in rows:
        key = (row.trace, row.workers, row.load)
        if row.policy == BASELINE and key in ours and row.ttft_p95_s and (ours[key].ttft_p95_s or 0) > row.ttft_p95_s:
            found.append(key)
    return found


def _evictions(rows: Sequence[Row], ours: dict[Key, Row]) -> list[float]:
    """Ours ÷ longest prefix's, where both hit about as much and its caches turn over at all."""
    found = []
    for row in rows:
        mine = ours.get((row.trace, row.workers, row.load))
        if row.policy != GREEDY or mine is None or row.hit_token_share is None or mine.hit_token_share is None:
            continue
        equal = abs(row.hit_token_share - mine.hit_token_share) <= SAME_HITS
        if equal and row.evicted_blocks_per_min >= FEW_EVICTIONS:
            found.append(mine.evicted_blocks_per_min / row.evicted_blocks_per_min)
    return found

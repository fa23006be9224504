"""The guard: a breach must be certain, a pass needs enough requests."""

from __future__ import annotations

import math
import random

import pytest

from controlplane.rollouts.guard import Arm, Limits, certainly_above, judge, later_than
from router.contract.histogram import bucket_of, observe

LIMITS = Limits()


def _arm(requests: int, *, errors: int = 0, hits: float = 0.5, ttft_ms: float = 100.0) -> Arm:
    return Arm(requests, errors, int(hits * 1000 * requests), 1000 * requests, {bucket_of(ttft_ms): requests})


@pytest.mark.parametrize(
    ("candidate", "others", "state", "breached"),
    [
        (_arm(0), _arm(1000), "wait", ()),
        (_arm(199), _arm(1000), "wait", ()),
        (_arm(200), _arm(1000), "pass", ()),
        (_arm(200), _arm(0), "pass", ()),  # nothing to compare with
        (_arm(5, errors=5), _arm(1000), "breach", ("errors",)),  # certain though few
        (_arm(5, errors=1), _arm(1000), "wait", ()),
        (_arm(1000, errors=9), _arm(1000), "pass", ()),
        (_arm(1000, errors=40), _arm(1000), "breach", ("errors",)),
        (_arm(1000, errors=40), _arm(1000, errors=40), "pass", ()),  # the others fail as often
        (_arm(400, errors=40), _arm(0), "breach", ("errors",)),
        (_arm(50, ttft_ms=300), _arm(1000), "breach", ("ttft",)),
        (_arm(400, ttft_ms=120), _arm(1000), "pass", ()),  # within 1.25 times
        (_arm(400, ttft_ms=300), _arm(10), "pass", ()),  # too few others for a p95
        (_arm(400, hits=0.44), _arm(1000), "breach", ("hits",)),
        (_arm(400, hits=0.46), _arm(1000), "pass", ()),
        (_arm(100, hits=0.1), _arm(1000), "wait", ()),
        (_arm(400, hits=0.9, ttft_ms=300), _arm(1000), "breach", ("ttft",)),  # more hits do not excuse a worse TTFT
        (_arm(400, errors=300, hits=0.1, ttft_ms=900), _arm(1000), "breach", ("errors", "ttft", "hits")),
    ],
)
def test_it_judges(candidate: Arm, others: Arm, state: str, breached: tuple[str, ...]) -> None:
    verdict = judge(candidate, others, LIMITS)
    assert (verdict.state, verdict.breached) == (state, breached)
    assert verdict.sentence


def test_equal_routers_are_rarely_told_apart() -> None:
    """1,000 pairs of arms from one distribution: heavy tails, 2 % failures."""
    rng = random.Random(7)

    def drawn(requests: int) -> Arm:
        arm = Arm(requests, sum(rng.random() < 0.02 for _ in range(requests)), 500 * requests, 1000 * requests)
        for _ in range(requests):
            observe(arm.ttft, rng.lognormvariate(5, 1))
        return arm

    breaches = sum(judge(drawn(300), drawn(600), LIMITS).state == "breach" for _ in range(1000))
    assert breaches <= 3


def test_a_tail_twice_as_long_is_found_in_a_few_hundred_requests() -> None:
    rng = random.Random(8)
    candidate, others = Arm(400), Arm(800)
    for _ in range(400):
        observe(candidate.ttft, 2 * rng.lognormvariate(5, 1))
    for _ in range(800):
        observe(others.ttft, rng.lognormvariate(5, 1))
    assert judge(candidate, others, LIMITS).breached == ("ttft",)


@pytest.mark.parametrize(("out_of", "share"), [(5, 0.01), (40, 0.05), (300, 0.05), (300, 0.4)])
def test_certainty_is_the_exact_binomial_tail(out_of: int, share: float) -> None:
    def tail(count: int) -> float:
        return sum(math.comb(out_of, k) * share**k * (1 - share) ** (out_of - k) for k in range(count, out_of + 1))

    for count in range(out_of + 1):
        assert certainly_above(count, out_of, share) == (count > out_of * share and tail(count) < 0.00135), count


def test_certainty_at_the_edges() -> None:
    assert not certainly_above(0, 0, 0.5) and not certainly_above(5, 5, 1.0)
    assert certainly_above(1, 10, 0.0)
    assert certainly_above(60_000, 1_000_000, 0.05) and not certainly_above(50_100, 1_000_000, 0.05)


def test_late_is_wholly_above_the_limit() -> None:
    buckets = {bucket_of(99): 1, bucket_of(100): 2, bucket_of(150): 4}
    assert later_than(buckets, 100) == 4

"""AUC and its interval: known values, and coverage by simulation."""

from __future__ import annotations

import random

import pytest

from controlplane.isolation.statistics import auc_of


def brute(a: list[float], b: list[float]) -> float:
    return sum((x < y) + 0.5 * (x == y) for x in a for y in b) / (len(a) * len(b))


@pytest.mark.parametrize(
    ("lower", "upper", "value"),
    [([1, 2, 3], [4, 5, 6], 1.0), ([4, 5, 6], [1, 2, 3], 0.0), ([1, 2], [1, 2], 0.5), ([1, 1, 1], [1, 1], 0.5),
     ([1, 3], [2, 4], 0.75)],
)  # fmt: skip
def test_it_counts_pairs(lower: list[float], upper: list[float], value: float) -> None:
    assert auc_of(lower, upper).value == value


def test_it_counts_as_all_pairs_do() -> None:
    rng = random.Random(1)
    for _ in range(50):
        a = [rng.randrange(10) for _ in range(rng.randrange(1, 30))]
        b = [rng.randrange(10) for _ in range(rng.randrange(1, 30))]
        assert auc_of(a, b).value == pytest.approx(brute(a, b))


def test_arms_that_do_not_overlap_have_an_interval_of_width() -> None:
    found = auc_of([1.0] * 50, [2.0] * 50)
    assert found.value == found.high == 1.0
    assert 0.85 < found.low < 0.99


def test_it_is_symmetric() -> None:
    rng = random.Random(2)
    a, b = [rng.gauss(0, 1) for _ in range(50)], [rng.gauss(1, 1) for _ in range(50)]
    there, back = auc_of(a, b), auc_of(b, a)
    assert there.low == pytest.approx(1 - back.high) and there.high == pytest.approx(1 - back.low)


@pytest.mark.parametrize(("shift", "truth"), [(0.0, 0.5), (0.5, 0.638), (1.5, 0.856)])
def test_95_percent_intervals_hold_the_truth_as_often_as_they_say(shift: float, truth: float) -> None:
    """Normal arms that differ by `shift` standard deviations: AUC = Φ(shift ÷ √2)."""
    rng = random.Random(3)
    held = 0
    for _ in range(400):
        a = [rng.gauss(0, 1) for _ in range(50)]
        b = [rng.gauss(shift, 1) for _ in range(50)]
        found = auc_of(a, b, confidence=0.95)
        held += found.low <= truth <= found.high
    assert 0.92 <= held / 400 <= 0.99


def test_no_difference_is_accused_in_one_of_two_hundred_at_most() -> None:
    rng = random.Random(4)
    accused = 0
    for _ in range(2000):
        a = [rng.lognormvariate(0, 0.5) for _ in range(50)]
        b = [rng.lognormvariate(0, 0.5) for _ in range(50)]
        accused += auc_of(a, b).low > 0.5
    assert accused <= 20


def test_an_empty_arm_is_refused() -> None:
    with pytest.raises(ValueError, match="samples"):
        auc_of([], [1.0])

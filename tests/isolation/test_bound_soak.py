"""S8 in short: detectable leaks are flagged, honest answers are not. In full: `python -m benchmarks.isolation`."""

from __future__ import annotations

import pytest

from benchmarks import isolation
from router.core.isolation import HistoryBook


def test_every_detectable_leak_is_flagged_and_no_honest_answer() -> None:
    found = isolation.soak(10_000, seed=11, leak_share=0.005)
    assert found.detectable >= 20
    assert (found.missed, found.false_alarms, found.flagged) == (0, 0, found.detectable)
    assert found.unknown < found.answers / 1000


@pytest.mark.parametrize("slack", [-600, 3000])
def test_the_soak_notices_a_bound_that_is_too_tight_or_too_loose(monkeypatch, slack: int) -> None:
    """A test that could not fail would prove nothing."""
    true_bound = HistoryBook._bound

    def wrong(self, reservation, cached):
        bound = true_bound(self, reservation, cached)
        return None if bound is None else max(0, bound + slack)

    monkeypatch.setattr(HistoryBook, "_bound", wrong)
    found = isolation.soak(3_000, seed=11, leak_share=0.01)
    assert (found.false_alarms > 0) if slack < 0 else (found.missed > 0)

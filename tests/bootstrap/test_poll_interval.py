"""Polls that come too seldom would leave every sample stale (C51)."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from controlplane.config import Config
from router.contract.live import LIVE_STALE_AFTER_S


@pytest.mark.parametrize("interval_s", [LIVE_STALE_AFTER_S, 60.0, 0.0, -1.0, float("nan")])
def test_an_interval_beyond_the_staleness_limit_is_refused_by_name_c51(interval_s: float) -> None:
    with pytest.raises(ValidationError, match="poll_interval_s"):
        Config(poll_interval_s=interval_s)


def test_an_interval_below_it_is_taken() -> None:
    assert Config(poll_interval_s=5.0).poll_interval_s == 5.0

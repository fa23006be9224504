"""Local hit, remote pull or recompute: S3.5."""

from __future__ import annotations

import pytest

from router.core.transfer import transfer_ms, worth_pulling

GIB = 1024**3


def test_s3_5_two_gib_over_twenty_gib_a_second_lose_to_a_sixty_ms_recompute() -> None:
    pull_ms = transfer_ms(2 * GIB, bytes_per_s=20 * GIB)
    assert pull_ms == pytest.approx(100.0)
    assert not worth_pulling(pull_ms=pull_ms, recompute_ms=60.0)
    assert worth_pulling(pull_ms=pull_ms, recompute_ms=400.0)


def test_set_up_counts_and_a_tie_is_recomputed() -> None:
    assert transfer_ms(GIB, bytes_per_s=GIB, setup_ms=5.0) == 1005.0
    assert not worth_pulling(pull_ms=10.0, recompute_ms=10.0)


@pytest.mark.parametrize("bytes_per_s", [0, -1])
def test_it_refuses_a_bandwidth_that_is_not_positive(bytes_per_s: float) -> None:
    with pytest.raises(ValueError, match="bandwidth"):
        transfer_ms(1, bytes_per_s=bytes_per_s)

"""A report's what-if replays the hour's recorded traffic where there is enough of it."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from controlplane.reports.figures.what_if import _ask, _scenarios
from controlplane.reports.figures.what_if_recorded import REQUESTS_MIN, replayed
from controlplane.telemetry.recorded import store_recorded
from router.contract.recorded import RecordedRequest, anchor_positions
from router.contract.telemetry import Shipment

pytestmark = pytest.mark.django_db

HOUR = datetime(2026, 3, 4, 10, tzinfo=UTC)
QUESTION = {
    "kv_capacity_tokens": 400_000, "prefill_tokens_per_s": 20_000.0, "good_s": 2.0,
    "scenarios": _scenarios(2, 0.65, 0.85, 0.1),
}  # fmt: skip


def _record(requests: int) -> None:
    """Every request begins with one of three heads of 16 blocks and ends with text of its own."""
    rng = random.Random(1)
    for number in range(requests):
        at = HOUR + timedelta(seconds=number)
        head = rng.randrange(3)
        anchors = b"".join(
            (head + 1 if place <= 16 else number << 8).to_bytes(4) + place.to_bytes(4) for place in anchor_positions(24)
        )
        one = RecordedRequest(
            at=at.timestamp(), tenant="acme", namespace="acme/chat", pool="llama", model="m", worker="llama/w1",
            prompt_tokens=3_100, output_tokens=20, cached_tokens=2_048, ttft_ms=100.0, duration_ms=500.0,
            text_bytes=12_400, anchors=anchors, unit=number.to_bytes(8), head_blocks=16,
        )  # fmt: skip
        store_recorded([Shipment("r1", "b1", number, at.timestamp(), recorded=[one])])


def test_the_recorded_hour_is_replayed_and_says_so() -> None:
    _record(REQUESTS_MIN + 40)
    found = replayed("llama", HOUR, QUESTION, _ask)
    assert found is not None
    assert found["recorded"]["requests"] == REQUESTS_MIN + 40
    assert found["recorded"]["scaled"].startswith("Every session was recorded.")
    assert [row["name"] for row in found["scenarios"]] == [row["name"] for row in QUESTION["scenarios"]]
    assert found["scenarios"][0]["hit_token_share"]["mean"] == pytest.approx(2_048 / 3_100, abs=0.05)
    assert found["error"] < 0.05 and found["seeds"] == 2


def test_an_hour_of_which_too_little_was_recorded_is_left_to_the_synthetic_workload() -> None:
    _record(20)
    assert replayed("llama", HOUR, QUESTION, _ask) is None
    assert replayed("other", HOUR, QUESTION, _ask) is None

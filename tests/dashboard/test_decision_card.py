"""The card of one request: its phases add up, other choices are reckoned from the candidates' terms."""

from __future__ import annotations

import msgspec
import pytest

from dashboard.decision_card import WIDTH, alternatives_of, card_of, phases_of
from router.contract.telemetry import DecisionSample
from tests.dashboard import explained

WHOLE, RETRIED, REFUSED, _ = explained.samples(1_000_000.0)


def _spans(sample: DecisionSample) -> dict[str, float]:
    return {phase.name: phase.ms for phase in phases_of(sample) if phase.ms is not None}


def test_phases_add_up_to_the_duration_in_their_order() -> None:
    spans = _spans(WHOLE)
    assert list(spans) == ["auth", "fingerprint", "match and choice", "queue", "prefill", "decode"]
    assert sum(spans.values()) == pytest.approx(2280.0)
    assert spans["auth"] == pytest.approx(0.012) and spans["match and choice"] == pytest.approx(0.042)
    assert spans["queue"] == 40.0 and spans["decode"] == 2000.0
    assert spans["prefill"] == pytest.approx(280.0 - 40.0 - 0.072)


def test_the_first_byte_stands_where_prefill_ends() -> None:
    names = [phase.name for phase in phases_of(WHOLE)]
    assert names.index("first byte") == names.index("prefill") + 1
    first_byte = next(phase for phase in phases_of(WHOLE) if phase.name == "first byte")
    assert first_byte.ms is None and float(first_byte.x) == pytest.approx(280 / 2280 * WIDTH, abs=0.01)


def test_bars_follow_each_other_within_the_drawing() -> None:
    for sample in (WHOLE, RETRIED, REFUSED):
        for phase in phases_of(sample):
            assert 0 <= float(phase.x) <= float(phase.x) + float(phase.width) <= WIDTH + 0.01, phase


def test_an_earlier_attempt_and_a_new_connection_are_phases() -> None:
    spans = _spans(RETRIED)
    assert spans["earlier attempt"] == pytest.approx(5000.0) and spans["connect"] == 3.0
    assert "decision" in spans and "fingerprint" not in spans, "what was not timed is not told apart"
    assert sum(spans.values()) == pytest.approx(7000.0)


def test_without_a_stream_the_worker_is_one_span() -> None:
    assert list(_spans(REFUSED)) == ["decision", "worker"]
    assert _spans(REFUSED)["worker"] == pytest.approx(14.0 - 0.044)


def test_without_times_there_are_no_phases() -> None:
    assert phases_of(msgspec.structs.replace(REFUSED, duration_ms=None, decision_us=0.0)) == []


def test_other_choices_cost_the_difference_of_the_nets() -> None:
    found = {other.name: other for other in alternatives_of(WHOLE)}
    assert list(found) == ["least loaded", "longest match", "round robin over 3", "no cache at all"]
    idlest, holder, mean = found["least loaded"], found["longest match"], found["round robin over 3"]
    assert (idlest.worker, idlest.recomputed_tokens) == ("demo/w4", 8192)
    assert idlest.slower_ms == pytest.approx(632.5 + 5)
    assert (holder.worker, holder.recomputed_tokens) == ("demo/w1", 1024)
    assert holder.slower_ms == pytest.approx(632.5 - 156.4)
    assert mean.slower_ms == pytest.approx(632.5 - (632.5 - 5 + 156.4) / 3)
    assert mean.recomputed_tokens == pytest.approx((2048 + 8192 + 1024) / 3)
    assert found["no cache at all"].slower_ms == pytest.approx(682.7)


def test_there_is_no_other_choice_without_candidates() -> None:
    assert alternatives_of(REFUSED) == []
    alone = [each for each in WHOLE.candidates if each.worker in ("demo/w2", "demo/w3")]
    assert alternatives_of(msgspec.structs.replace(WHOLE, candidates=alone)) == []


@pytest.mark.parametrize(
    ("cached", "off", "words"),
    [
        (6128, -16, "Delivered as predicted."),
        (512, -5632, "5,632 tokens fewer than predicted"),
        (8000, 1856, "1,856 tokens more than predicted"),
        (None, None, "did not say"),
    ],
)
def test_it_says_what_became_of_the_prediction(cached: int | None, off: int | None, words: str) -> None:
    card = card_of(msgspec.structs.replace(WHOLE, cached_tokens=cached), others_load=True)
    assert card.off_tokens == off and words in card.verdict


def test_candidates_stand_by_their_net_and_those_left_out_last() -> None:
    names = [each.worker for each in card_of(WHOLE, others_load=True).candidates]
    assert names == ["demo/w2", "demo/w1", "demo/w4", "demo/w3"]


def test_a_tenants_sentence_leaves_out_how_busy_the_worker_is() -> None:
    assert card_of(RETRIED, others_load=True).sentence.endswith("5 requests under way.")
    assert card_of(RETRIED, others_load=False).sentence == "w1: holds nothing of the prompt, 3 ms of queue."

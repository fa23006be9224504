"""What a sample tells of where a request's time went, and what routers tell of their workers' calibration."""

from __future__ import annotations

from dataclasses import replace

from router.contract.telemetry import DecisionSample, Shipment, decode_shipment, encode_shipment
from tests.router.conftest import RunningRouter, StartRouter, chat, snapshot_for
from tests.router.scripted_worker import DONE, ScriptedWorker, answer_json, event, stream, usage_event

PROMPT = "The quick brown fox. " * 400


async def _sample(router: RunningRouter, *, share: float, text: str = PROMPT, streams: bool = True) -> DecisionSample:
    service = router.runtime.service
    service._limits = replace(service._limits, sample_share=share)
    answer = await router.post(chat(text, stream=streams))
    router.runtime.telemetry.close_second(0)
    return router.runtime.telemetry.explained[answer.headers["x-request-id"]]


async def test_a_sampled_request_tells_its_phases(router: RunningRouter, worker: ScriptedWorker) -> None:
    worker.script = stream(event("a"), usage_event(), DONE)
    sample = await _sample(router, share=1.0)
    assert sample.auth_us is not None and sample.fingerprint_us is not None
    assert sample.auth_us > 0 and 0 < sample.fingerprint_us < sample.decision_us
    assert sample.queue_ms is not None and sample.ttft_ms is not None and sample.duration_ms is not None
    assert 0 <= sample.queue_ms <= sample.ttft_ms <= sample.duration_ms
    assert sample.connect_ms > 0 and sample.predicted_ttft_ms > 0 and sample.output_tokens is not None
    again = await _sample(router, share=1.0)
    assert again.connect_ms == 0, "the connection was there"


async def test_what_was_not_drawn_tells_what_costs_nothing(router: RunningRouter, worker: ScriptedWorker) -> None:
    worker.script = answer_json({"error": "x"}, status=500)
    sample = await _sample(router, share=0.0, streams=False)
    assert sample.outcome == "upstream_error"
    assert (sample.auth_us, sample.fingerprint_us, sample.queue_ms) == (None, None, None)
    assert sample.decision_us > 0


async def test_a_retried_request_tells_when_the_other_worker_was_asked(
    start_router: StartRouter, worker: ScriptedWorker, other_worker: ScriptedWorker
) -> None:
    router = await start_router(snapshot_for([worker.url, other_worker.url]))
    worker.script = answer_json({"error": "x"}, status=500)
    other_worker.script = stream(event("ok"), usage_event(), DONE)
    samples = [await _sample(router, share=1.0, text=f"{number}" * 600) for number in range(6)]
    retried = [sample for sample in samples if sample.retries]
    assert retried and all(sample.retries == 1 and sample.retried_after_ms > 0 for sample in retried)
    assert all(sample.retried_after_ms == 0 for sample in samples if not sample.retries)


async def test_the_router_tells_what_it_learnt_of_a_worker(router: RunningRouter, worker: ScriptedWorker) -> None:
    before = router.runtime._state(router.runtime._started_at).calibration
    assert [(entry.samples, entry.age_s) for entry in before.values()] == [(0, None)]
    usage = {"prompt_tokens": 2000, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 0}}
    worker.script = stream(event("a"), usage_event(usage), DONE)
    await router.post(chat(PROMPT, stream=True))
    state, _ = router.runtime._state_and_heat(router.runtime._started_at + 60, 0)
    learnt = state.calibration["p/w1"]
    assert learnt.samples == 1 and learnt.age_s is not None and 0 < learnt.age_s <= 60
    assert learnt.tokens_per_s > 0 and 0 < learnt.credit <= 1
    shipment = Shipment(source="r1", boot="b", seq=1, at=0.0, router=state)
    assert decode_shipment(encode_shipment(shipment)) == shipment

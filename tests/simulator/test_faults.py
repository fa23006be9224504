"""Each fault does what it says, and only while it is set."""

from __future__ import annotations

import time

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from simulator.faults import METRICS_HUGE_BYTES, Faults, changed, parse_fault_flag
from tests.simulator.conftest import LiveWorker, StartWorker

TEXT = "a prompt of some blocks, so that there is something to hit the second time " * 8


async def test_it_shows_and_replaces_single_fields(worker: LiveWorker) -> None:
    await worker.fault(slow=3)
    await worker.fault(lie_hits=7)
    shown = (await worker.http.get("/sim/faults")).json()
    assert (shown["slow"], shown["lie_hits"], shown["hang"]) == (3.0, 7, False)


async def test_it_refuses_unknown_faults_and_values(worker: LiveWorker) -> None:
    for body in ({"slow": 0}, {"status": 418}, {"nonsense": 1}, {"error_rate": 2}, [1], {"hang": "y"}):
        response = await worker.http.post("/sim/faults", json=body)
        assert response.status_code == 400, body
        assert response.json()["error"]
    assert (await worker.http.get("/sim/faults")).json()["slow"] == 1.0


async def test_it_gets_slower(start_worker: StartWorker) -> None:
    worker = await start_worker(time_scale=1.0)
    started = time.monotonic()
    await worker.chat("x")
    usual_s = time.monotonic() - started
    await worker.fault(slow=8)
    started = time.monotonic()
    await worker.chat("x")
    assert time.monotonic() - started > 3 * usual_s


async def test_it_hangs_and_recovers(worker: LiveWorker) -> None:
    await worker.fault(hang=True)
    with pytest.raises(httpx.ReadTimeout):
        await worker.http.post("/v1/completions", json={"prompt": "x"}, timeout=httpx.Timeout(5, read=0.3))
    assert (await worker.http.get("/health")).status_code == 200
    assert (await worker.http.get("/metrics")).status_code == 200
    await worker.fault(hang=False)
    assert (await worker.chat("x")).status_code == 200


async def test_it_sends_stream_headers_even_while_it_hangs(worker: LiveWorker) -> None:
    await worker.fault(hang=True)
    body = {"prompt": "x", "stream": True}
    timeout = httpx.Timeout(5, read=0.3)
    async with worker.http.stream("POST", "/v1/completions", json=body, timeout=timeout) as response:
        assert response.status_code == 200
        with pytest.raises(httpx.ReadTimeout):
            await response.aread()


@pytest.mark.parametrize("status", [500, 429])
async def test_it_answers_with_a_status(worker: LiveWorker, status: int) -> None:
    await worker.fault(status=status)
    response = await worker.chat("x")
    assert (response.status_code, response.json()["error"]["code"]) == (status, status)
    await worker.fault(status=None)
    assert (await worker.chat("x")).status_code == 200


async def test_it_fails_a_share_of_requests(worker: LiveWorker) -> None:
    await worker.fault(error_rate=0.5)
    statuses = [(await worker.chat("x", max_tokens=1)).status_code for _ in range(40)]
    assert 5 <= statuses.count(500) <= 35
    assert set(statuses) == {200, 500}


@pytest.mark.parametrize("stream", [True, False])
async def test_it_dies_in_the_middle_of_an_answer(worker: LiveWorker, stream: bool) -> None:
    await worker.fault(die_mid_stream=1.0)
    with pytest.raises(httpx.RemoteProtocolError):
        await worker.chat("x", stream=stream)
    assert worker.app.engine.running == [] or worker.app.engine.running[0].aborted
    await worker.fault(die_mid_stream=0)
    assert (await worker.chat("x")).status_code == 200


async def test_it_lies_about_hits(worker: LiveWorker) -> None:
    await worker.fault(lie_hits=40)
    assert await worker.cached_tokens(TEXT) == 40
    await worker.fault(lie_hits=10_000)
    usage = (await worker.chat("another")).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"]


async def test_it_lets_another_tenant_hit_when_it_ignores_salts(worker: LiveWorker) -> None:
    await worker.fault(ignore_salt=True)
    assert await worker.cached_tokens(TEXT, cache_salt="a") == 0
    assert await worker.cached_tokens(TEXT, cache_salt="b") > 0


def _samples(text: str) -> dict[str, float]:
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_it_spoils_its_metrics_page(worker: LiveWorker) -> None:
    await worker.fault(metrics="nan")
    values = _samples((await worker.http.get("/metrics")).text)
    assert all(value != value for name, value in values.items() if name.startswith("vllm:"))
    await worker.fault(metrics="garbage")
    with pytest.raises(ValueError):
        (await worker.http.get("/metrics")).content.decode("utf-8")
    await worker.fault(metrics="huge")
    assert len((await worker.http.get("/metrics/?name[]=vllm:num_requests_running")).content) > 0.9 * METRICS_HUGE_BYTES
    await worker.fault(metrics="slow")
    with pytest.raises(httpx.ReadTimeout):
        await worker.http.get("/metrics", timeout=httpx.Timeout(5, read=0.5))


async def test_it_resets_its_counters_once(worker: LiveWorker) -> None:
    await worker.chat(TEXT)
    name = "vllm:prefix_cache_queries_total[('engine', '0'), ('model_name', 'sim-llama')]"
    before = _samples((await worker.http.get("/metrics")).text)
    await worker.fault(metrics="reset")
    after = _samples((await worker.http.get("/metrics")).text)
    assert before[name] > 0 == after[name]
    assert after["process_start_time_seconds[]"] > before["process_start_time_seconds[]"]
    assert (await worker.http.get("/sim/faults")).json()["metrics"] is None
    await worker.chat(TEXT)
    assert _samples((await worker.http.get("/metrics")).text)[name] == before[name]


def test_it_takes_faults_as_flags() -> None:
    faults = Faults()
    for flag in ("slow=2.5", "hang=true", "metrics=nan", "status=500"):
        faults = changed(faults, parse_fault_flag(flag))
    assert faults == Faults(slow=2.5, hang=True, metrics="nan", status=500)
    with pytest.raises(ValueError, match="name=value"):
        parse_fault_flag("slow")

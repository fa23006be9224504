"""The player against a worker and against servers that refuse, break or are not there."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from simulator.clients import Client
from simulator.replay import ChatTurn
from simulator.report import TrafficReport, ttft_class
from simulator.sender import Sender
from simulator.traffic import TrafficConfig, TrafficPlayer, run_traffic
from tests.simulator.conftest import LiveWorker, StartWorker

CLIENTS = [
    Client(tenant="acme", namespace="acme/support", key="tm_one", model="sim-llama", template="t@1"),
    Client(tenant="globex", namespace="globex/code", key="tm_two", model="sim-llama", session_header=False),
]
TURN = ChatTurn("weka-1", [{"role": "user", "content": "hello, worker, are you there? " * 10}], max_tokens=3)


def sender(handler: httpx.MockTransport, report: TrafficReport) -> Sender:
    return Sender(httpx.AsyncClient(base_url="http://router", transport=handler), report, seed=1)


async def test_it_replays_sessions_and_conversations_and_reports(worker: LiveWorker, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    config = TrafficConfig(
        url=worker.url, clients=CLIENTS, trace="mixed", speed=60.0, sessions=4, duration_s=3.0, report=path,
        probe_share=0.02,
    )  # fmt: skip
    summary = await run_traffic(config)
    assert json.loads(path.read_text()) == summary
    assert summary["requests"] > 0
    assert (summary["failed"], summary["errors"], summary["usage_unknown"]) == (0, {}, 0)
    assert 0 <= summary["hit_token_share"] < 1
    assert sum(summary[f"ttft_{kind}_ms"]["count"] for kind in ("hit", "partial", "miss")) == summary["requests"]
    assert set(summary["by_namespace"]) <= {"acme/support", "globex/code"}
    assert summary["prompt_tokens"] == sum(row["prompt_tokens"] for row in summary["by_namespace"].values())
    queried = worker.app.engine.counts.queried_tokens
    assert summary["prompt_tokens"] <= queried


async def test_it_notices_tenants_that_share_a_cache(start_worker: StartWorker) -> None:
    """Straight to a worker nobody salts the requests, so the second tenant of a probe hits."""
    worker = await start_worker()
    config = TrafficConfig(url=worker.url, clients=CLIENTS, speed=100.0, sessions=3, probe_share=0.5)
    report = TrafficReport()
    async with httpx.AsyncClient(base_url=worker.url, timeout=20) as http, asyncio.timeout(30):
        playing = asyncio.create_task(TrafficPlayer(config, http, report).play())
        while report.isolation_probes == 0:
            assert not playing.done()
            await asyncio.sleep(0.05)
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)
    assert report.isolation_cached_tokens > 0


async def test_it_names_client_session_and_template() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, content=b"data: {}\n\ndata: [DONE]\n\n")

    report = TrafficReport()
    for client in CLIENTS:
        assert await sender(httpx.MockTransport(answer), report).send(client, TURN)
    first, second = (request.headers for request in seen)
    assert (first["authorization"], first["x-session-id"]) == ("Bearer tm_one", "weka-1")
    assert first["x-tidemark-template"] == "t@1"
    assert "x-session-id" not in second and "x-tidemark-template" not in second
    assert json.loads(seen[0].content)["stream_options"] == {"include_usage": True}
    assert report.usage_unknown == 2  # unknown, not 0


async def test_it_comes_again_when_told_to_wait() -> None:
    answers = iter([429, 503, 200])

    def answer(_request: httpx.Request) -> httpx.Response:
        status = next(answers)
        headers = {"retry-after": "0.01"}
        return httpx.Response(status, headers=headers, content=b"data: [DONE]\n\n")

    report = TrafficReport()
    assert await sender(httpx.MockTransport(answer), report).send(CLIENTS[0], TURN)
    assert (report.requests, report.failed, report.backoffs) == (1, 0, 2)
    assert report.errors == {"429": 1, "503": 1}


async def test_it_gives_up_on_other_errors_and_broken_answers() -> None:
    report = TrafficReport()
    refuses = httpx.MockTransport(lambda _: httpx.Response(404, json={}))
    breaks = httpx.MockTransport(lambda _: httpx.Response(200, content=b"data: {}\n\n"))
    for transport in (refuses, breaks):
        assert await sender(transport, report).send(CLIENTS[0], TURN) is None
    assert (report.requests, report.failed) == (0, 2)
    assert report.errors == {"404": 1, "broken": 1}


async def test_it_counts_what_its_own_end_cuts_off() -> None:
    asked = asyncio.Event()

    async def answer(_request: httpx.Request) -> httpx.Response:
        asked.set()
        await asyncio.sleep(60)
        return httpx.Response(200, content=b"data: [DONE]\n\n")

    report = TrafficReport()
    sending = asyncio.create_task(sender(httpx.MockTransport(answer), report).send(CLIENTS[0], TURN))
    await asked.wait()
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert (report.requests, report.failed, report.cut_off, report.errors) == (0, 0, 1, {})


async def test_it_retries_refused_connections_and_counts_them_apart() -> None:
    attempts = 0

    def answer(_request: httpx.Request) -> httpx.Response:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise httpx.ConnectError("refused")
        return httpx.Response(200, content=b"data: [DONE]\n\n")

    report = TrafficReport()
    assert await sender(httpx.MockTransport(answer), report).send(CLIENTS[0], TURN)
    assert (report.connect_retries, report.errors) == (2, {})


async def test_it_counts_answers_that_the_worker_breaks_off(worker: LiveWorker) -> None:
    await worker.fault(die_mid_stream=1.0)
    report = TrafficReport()
    async with httpx.AsyncClient(base_url=worker.url) as http:
        assert await Sender(http, report, seed=1).send(CLIENTS[0], TURN) is None
    assert report.errors == {"broken": 1}


async def test_it_stops_at_its_deadline_with_nobody_listening() -> None:
    config = TrafficConfig(url="http://127.0.0.1:9", clients=CLIENTS, speed=1000.0, sessions=2, duration_s=0.6)
    async with asyncio.timeout(10):
        summary = await run_traffic(config)
    assert summary["requests"] == 0
    assert summary["connect_retries"] > 0
    assert summary["hit_token_share"] is None


@pytest.mark.parametrize(
    ("prompt", "cached", "expected"),
    [(100, 50, "hit"), (100, 49, "partial"), (100, 0, "miss"), (100, None, "unknown"), (None, 3, "unknown")],
)
def test_it_classes_answers_as_telemetry_does(prompt: int | None, cached: int | None, expected: str) -> None:
    assert ttft_class(prompt, cached) == expected

"""A simulated worker served in the test's own loop, on free ports, with a fast modelled GPU."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import uvicorn

from simulator.worker import SimulatedWorker, WorkerConfig

FAST = 50.0
"""Time scale of test workers."""


@dataclass(slots=True)
class LiveWorker:
    app: SimulatedWorker
    url: str
    http: httpx.AsyncClient

    async def chat(self, text: str, **fields: Any) -> httpx.Response:
        body = {"model": "sim-llama", "messages": [{"role": "user", "content": text}], "max_tokens": 4}
        return await self.http.post("/v1/chat/completions", json=body | fields)

    async def cached_tokens(self, text: str, **fields: Any) -> int:
        usage = (await self.chat(text, **fields)).raise_for_status().json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    async def fault(self, **fields: Any) -> None:
        (await self.http.post("/sim/faults", json=fields)).raise_for_status()


StartWorker = Callable[..., Awaitable[LiveWorker]]


@pytest.fixture
async def start_worker() -> AsyncIterator[StartWorker]:
    stops: list[Callable[[], Awaitable[None]]] = []

    async def start(**settings: Any) -> LiveWorker:
        port, events, replay = _free_ports(3)
        config = WorkerConfig(
            **{"port": port, "events_port": events, "replay_port": replay, "time_scale": FAST} | settings
        )
        app = SimulatedWorker(config)
        server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_config=None, access_log=False,
                                               lifespan="on", timeout_graceful_shutdown=1))  # fmt: skip
        server.install_signal_handlers = lambda: None  # type: ignore[method-assign]
        task = asyncio.create_task(server._serve())
        while not server.started:
            assert not task.done(), "the worker did not start"
            await asyncio.sleep(0.01)
        http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20, trust_env=False)

        async def stop() -> None:
            await http.aclose()
            server.should_exit = True
            with suppress(SystemExit):
                await task

        stops.append(stop)
        return LiveWorker(app, f"http://127.0.0.1:{port}", http)

    yield start
    for stop in stops:
        await stop()


@pytest.fixture
async def worker(start_worker: StartWorker) -> LiveWorker:
    return await start_worker()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()

"""Routers on one port are replaced one after another under load, and no request fails (A24)."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from router.contract.snapshot import encode_document
from tests.router.conftest import ALICE_KEY, chat, free_port, signed, snapshot_for
from tests.router.process import RouterProcess
from tests.router.scripted_worker import DONE, Asked, ScriptedWorker, answer_json, event, stream

HEADERS = {"authorization": f"Bearer {ALICE_KEY}"}
RESTARTS = 2
CLIENTS = 6


class Load:
    """Clients that keep their connections, clients that open one for each request, and streams."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.outcomes: Counter[str] = Counter()
        self.over = False

    async def run(self) -> None:
        kinds = (self._keep_alive, self._connect_anew, self._stream)
        await asyncio.gather(*(kinds[number % 3]() for number in range(CLIENTS)))

    async def _keep_alive(self) -> None:
        async with httpx.AsyncClient(base_url=self.url, headers=HEADERS, trust_env=False, timeout=10) as client:
            while not self.over:
                await self._ask(client)
                await asyncio.sleep(0.01)

    async def _connect_anew(self) -> None:
        while not self.over:
            async with httpx.AsyncClient(base_url=self.url, headers=HEADERS, trust_env=False, timeout=10) as client:
                await self._ask(client)
            await asyncio.sleep(0.01)

    async def _stream(self) -> None:
        while not self.over:
            async with httpx.AsyncClient(base_url=self.url, headers=HEADERS, trust_env=False, timeout=10) as client:
                await self._ask(client, stream=True)

    async def _ask(self, client: httpx.AsyncClient, **fields: object) -> None:
        try:
            answer = await client.post("/v1/chat/completions", json=chat("hello", **fields))
            whole = answer.content.endswith(DONE) if fields else "choices" in answer.json()
            self.outcomes["ok" if answer.status_code == 200 and whole else f"status {answer.status_code}"] += 1
        except httpx.HTTPError as error:
            self.outcomes[f"{type(error).__name__} {fields}"] += 1


@pytest.fixture
async def fleet(tmp_path: Path, worker: ScriptedWorker) -> AsyncIterator[list[RouterProcess]]:
    async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
        slow = stream(*[event("word")] * 20, DONE, pause_s=0.05)
        await (slow if asked.json.get("stream") else answer_json())(asked, writer)

    worker.script = answer
    document = encode_document(signed(snapshot_for([worker.url])))
    port, made = free_port(), []
    for number in range(2):
        folder = tmp_path / f"r{number}"
        folder.mkdir()
        (folder / "snapshot.json").write_bytes(document)
        made.append(await RouterProcess(folder, port=port, ROUTER_ID=f"r{number}", ROUTER_DRAIN_S="10").start())
    for each in made:
        await each.until_ready()
    yield made
    for each in made:
        if each.process is not None and each.process.returncode is None:
            await each.end(signal.SIGKILL)


@pytest.mark.real_time
async def test_no_request_fails_while_routers_are_replaced_under_load_a24(fleet: list[RouterProcess]) -> None:
    load = Load(fleet[0].url)
    running = asyncio.create_task(load.run())
    for number in range(RESTARTS):
        router = fleet[number % 2]
        await asyncio.sleep(0.3)
        status, _, err = await router.end(within_s=15)
        stopped = next(json.loads(line) for line in err.splitlines() if '"router_stops"' in line)
        assert (status, stopped["cut_off"]) == (0, 0), "its streams were not cut off"
        await router.start()
        await router.until_ready()
    load.over = True
    await running
    assert set(load.outcomes) == {"ok"}, load.outcomes
    assert load.outcomes["ok"] > 200

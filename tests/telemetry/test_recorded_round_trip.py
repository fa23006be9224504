"""Traffic through a router and a simulated worker, recorded, stored, written to a file and replayed: the same hits.

One worker, since which of several gets a prompt hangs on milliseconds, there and in the replay.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from django.utils import timezone

from controlplane.telemetry.ingest import apply_entries
from controlplane.telemetry.recorded import write_recorded
from controlplane.telemetry.windows import Scope
from router.config import Settings
from router.contract.recorded import ANCHORS_AN_OCTAVE
from router.contract.snapshot import encode_document
from router.runtime import Runtime
from simulator.fleet.question import Answer, Asked, Question
from simulator.fleet.recorded_file import load
from simulator.fleet.what_if_recorded import WhatIf
from tests.router.conftest import ALICE_KEY, FLEET_HEX, MODEL, free_port, signed, snapshot_for

ROOT = Path(__file__).parents[2]
WORKERS, TALKS, TURNS, AT_ONCE = 1, 8, 4, 4
READY_WITHIN_S = 60.0
WORDS = [
    "lamp", "river", "stone", "cloud", "paper", "glass", "field", "north", "harbour", "winter", "copper", "garden",
]  # fmt: skip


@pytest.mark.real_time
def test_the_replayed_recording_hits_what_the_workers_hit(db: None, tmp_path: Path) -> None:
    began = timezone.now()
    entries = asyncio.run(_serve(tmp_path))
    now = timezone.now()
    assert apply_entries(entries, now=now).refused == []
    path = tmp_path / "recorded.jsonl.gz"
    scope = Scope(from_=began - timedelta(seconds=5), to=now + timedelta(seconds=5), pool="p")
    assert write_recorded(scope, path) == TALKS * TURNS
    answer = _ask_what_if(path)
    assert (answer.measured.hit_token_share or 0) > 0.5, "the traffic has something to hit"
    # Anchors tell the end of a shared head to within 1/16 of its length, never beyond it.
    assert answer.error.hit_token_share is not None
    assert -1 / ANCHORS_AN_OCTAVE <= answer.error.hit_token_share <= 0.01
    base, in_turn = answer.scenarios
    assert base.hit_token_share is not None and in_turn.hit_token_share is not None
    assert in_turn.hit_token_share.mean < base.hit_token_share.mean - 0.05


def _ask_what_if(path: Path) -> Answer:
    scenarios = [Asked(), Asked(workers=4, policy="round_robin")]
    question = Question(workers=WORKERS, scenarios=scenarios, profile="h100-32b")
    return WhatIf(question, load(f"recorded:{path}"), lambda *progress: None).answer()


async def _serve(folder: Path) -> list[bytes]:
    """The shipments of a router that served TALKS conversations."""
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(_worker()) for _ in range(WORKERS)]
        runtime, url = await stack.enter_async_context(_router(folder, urls))
        client = await stack.enter_async_context(
            httpx.AsyncClient(
                base_url=url, headers={"authorization": f"Bearer {ALICE_KEY}"}, trust_env=False, timeout=60
            )
        )
        at_once = asyncio.Semaphore(AT_ONCE)
        # The first talk alone: who of a burst finds the common head is a matter of milliseconds.
        await _talk(client, 0, at_once)
        await asyncio.gather(*(_talk(client, number, at_once) for number in range(1, TALKS)))
        runtime.telemetry.close_second(timezone.now().timestamp())
        return list(runtime.telemetry._buffer)


async def _talk(client: httpx.AsyncClient, number: int, at_once: asyncio.Semaphore) -> None:
    rng = random.Random(number)
    messages = [{"role": "system", "content": _text(random.Random(0), 3000)}]
    async with at_once:
        for _ in range(TURNS):
            messages.append({"role": "user", "content": _text(rng, 750)})
            body = {"model": MODEL, "messages": messages, "max_tokens": 24}
            answer = await client.post("/v1/chat/completions", json=body)
            answer.raise_for_status()
            messages.append({"role": "assistant", "content": answer.json()["choices"][0]["message"]["content"]})


def _text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(WORDS, k=words))


@asynccontextmanager
async def _worker() -> AsyncIterator[str]:
    port = free_port()
    flags = ("--port", str(port), "--model", MODEL, "--events-port", "0", "--time-scale", "4")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "simulator", "worker", *flags, cwd=ROOT,
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        await _until_ready(f"http://127.0.0.1:{port}/health")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def _router(folder: Path, urls: list[str]) -> AsyncIterator[tuple[Runtime, str]]:
    (folder / "snapshot.json").write_bytes(encode_document(signed(snapshot_for(urls))))
    settings = Settings(
        fleet_key=FLEET_HEX, router_id="r1", router_port=free_port(), router_admin_port=free_port(),
        router_state_dir=folder, router_drain_s=1.0, redis_url="redis://127.0.0.1:1/0", router_recorded_per_s=1000,
    )  # fmt: skip
    runtime, stop = Runtime(settings), asyncio.Event()
    task = asyncio.create_task(runtime.run(stop))
    try:
        await _until_ready(f"http://127.0.0.1:{settings.router_admin_port}/readyz")
        yield runtime, f"http://127.0.0.1:{settings.router_port}"
    finally:
        stop.set()
        await task


async def _until_ready(url: str) -> None:
    async with asyncio.timeout(READY_WITHIN_S), httpx.AsyncClient(trust_env=False) as client:
        while True:
            try:
                if (await client.get(url)).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            await asyncio.sleep(0.05)

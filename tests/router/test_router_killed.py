"""A router that is killed serves again at once and knows again what the workers hold (A2)."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from router.contract.snapshot import PolicySnapshot, encode_document
from tests.exact.conftest import model_folder  # noqa: F401 - fixture
from tests.router.conftest import ALICE_KEY, ALICE_SALT, chat, signed
from tests.router.exact_worker import ExactWorker
from tests.router.process import RouterProcess
from tests.router.test_exact_mode import exact_snapshot, text

TALKS = 24


@pytest.fixture
async def workers(model_folder: Path) -> AsyncIterator[list[ExactWorker]]:  # noqa: F811 - the imported fixture
    made = [await ExactWorker(model_folder).start() for _ in range(4)]
    yield made
    for worker in made:
        await worker.stop()


@pytest.fixture
async def router(tmp_path: Path, model_folder: Path, workers: list[ExactWorker]) -> AsyncIterator[RouterProcess]:  # noqa: F811
    policy: PolicySnapshot = exact_snapshot(*workers, tokenizer=model_folder.name)
    (tmp_path / "snapshot.json").write_bytes(encode_document(signed(policy)))
    made = RouterProcess(tmp_path, ROUTER_TOKENIZER_DIR=str(model_folder.parent))
    await made.start()
    yield made
    await made.end(signal.SIGKILL)


async def until_exact(router: RouterProcess, workers: int, *, within_s: float) -> None:
    ends_at = time.monotonic() + within_s
    async with httpx.AsyncClient(base_url=router.admin_url, trust_env=False) as admin:
        while True:
            pools: dict[str, Any] = (await admin.get("/state")).json()["exact"]["pools"]
            if sum(each["exact"] for each in pools.get("p", {}).get("workers", {}).values()) == workers:
                return
            assert time.monotonic() < ends_at, "the workers' caches are not known in time"
            await asyncio.sleep(0.05)


async def hit_share(router: RouterProcess, talks: list[str]) -> float:
    """One more turn of every talk; cached tokens ÷ prompt tokens."""
    cached = prompt = 0
    async with httpx.AsyncClient(base_url=router.url, trust_env=False, timeout=10) as client:
        for number, talk in enumerate(talks):
            talks[number] = talk + " and " + text(12, seed=len(talk))
            answer = await client.post(
                "/v1/chat/completions", json=chat(talks[number]), headers={"authorization": f"Bearer {ALICE_KEY}"}
            )
            usage = answer.raise_for_status().json()["usage"]
            cached += usage["prompt_tokens_details"]["cached_tokens"]
            prompt += usage["prompt_tokens"]
    return cached / prompt


async def until_served(router: RouterProcess) -> float:
    """Seconds to the first good answer."""
    started = time.monotonic()
    async with httpx.AsyncClient(base_url=router.url, trust_env=False) as client:
        while True:
            try:
                headers = {"authorization": f"Bearer {ALICE_KEY}"}
                if (await client.post("/v1/chat/completions", json=chat("first"), headers=headers)).status_code == 200:
                    return time.monotonic() - started
            except httpx.HTTPError:
                await asyncio.sleep(0.02)


async def test_after_kill_9_it_serves_within_2_s_and_hits_as_before_by_replay_a2(
    router: RouterProcess, workers: list[ExactWorker]
) -> None:
    await until_served(router)
    await until_exact(router, len(workers), within_s=30)
    talks = [f"{number} " + text(150, seed=number) for number in range(TALKS)]
    await hit_share(router, talks)
    before = await hit_share(router, talks)
    assert before > 0.8

    await router.end(signal.SIGKILL)
    killed_at = time.monotonic()
    await router.start()
    again_s = await until_served(router)
    assert again_s - router.waited_for_cpu_s() <= 2.0
    await until_exact(router, len(workers), within_s=killed_at + 30 - time.monotonic())
    after = await hit_share(router, talks)
    assert after >= 0.9 * before
    assert time.monotonic() - killed_at <= 30

    asked = [asked for worker in workers for asked in worker.http.asked if asked.raw_head.startswith(b"POST /v1/")]
    assert len(asked) == 3 * TALKS + 2
    assert all(each.json["cache_salt"] == ALICE_SALT for each in asked), "0 unsalted requests"

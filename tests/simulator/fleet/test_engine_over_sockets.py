"""The modelled fleet against simulated workers over sockets: turns through a real router hit the same tokens."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import re
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import httpx
import msgspec

from router.contract.snapshot import PolicySnapshot
from simulator.fleet.hardware import H100_32B
from simulator.fleet.validate import Asked, Served, WorkerFacts, simulated
from simulator.tokens import render_chat, tokenize
from tests.router.conftest import (
    ALICE_ID,
    MODEL,
    StartRouter,
    free_port,
    snapshot_for,
    start_router,  # noqa: F401  a fixture
)

ROOT = Path(__file__).parents[3]
FACTS = WorkerFacts(block_tokens=16, kv_blocks=600, prompt_tokens_max=6_000, batch_tokens=8_192)
"""Of each worker: what all conversations say in the end is twice what fits, so that caches turn over."""
WORKERS, TALKS, TURNS = 2, 12, 4
READY_WITHIN_S = 60.0
WORDS = ["lamp", "river", "stone", "cloud", "paper", "glass", "field", "north", "harbour", "winter", "copper", "garden"]


async def test_turns_through_a_real_router_hit_what_the_model_says(start_router: StartRouter) -> None:  # noqa: F811
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(worker()) for _ in range(WORKERS)]
        router = await start_router(explaining(snapshot_for(urls)))
        async with router.client() as client:
            asked, hits = await talk_in_turns(client)
    equal = sum(hit == would.hit_tokens for hit, would in zip(hits, modelled(asked), strict=True))
    assert {each.worker for each in asked} == set(range(WORKERS))
    assert sum(hits) > 0.3 * sum(len(each.prompt) for each in asked), "there is something to hit"
    assert hits.count(0) > WORKERS, "and something was evicted"
    assert equal >= 0.95 * len(asked)


def explaining(snapshot: PolicySnapshot) -> PolicySnapshot:
    """Alice's key may see where each of its requests went."""
    grant = msgspec.structs.replace(snapshot.keys[ALICE_ID], scopes=("inference", "explain"))
    return msgspec.structs.replace(snapshot, keys=snapshot.keys | {ALICE_ID: grant})


async def talk_in_turns(client: httpx.AsyncClient) -> tuple[list[Asked], list[int]]:
    """Turns of all conversations in a shuffled order, one at a time: what was asked of which worker, what it hit."""
    dice = random.Random(3)
    talks = [[("user", text(dice, 1_500))] for _ in range(TALKS)]
    order = [number for number in range(TALKS) for _ in range(TURNS)]
    dice.shuffle(order)
    asked, hits = [], []
    for number in order:
        messages = talks[number]
        prompt = render_chat(messages)
        answer = await client.post(
            "/v1/chat/completions",
            json={"model": MODEL, "max_tokens": 24, "messages": [{"role": r, "content": c} for r, c in messages]},
        )
        answer.raise_for_status()
        said = answer.json()["choices"][0]["message"]["content"]
        name = re.search(r"worker=p/w(\d+);", answer.headers["x-tidemark-decision"])
        assert name is not None
        asked.append(Asked(int(name[1]) - 1, number, (), prompt=tuple(prompt), answer=tuple(tokenize(said))))
        hits.append(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
        messages += [("assistant", said), ("user", text(dice, 300))]
    return asked, hits


def text(dice: random.Random, tokens: int) -> str:
    return "".join(dice.choice(WORDS)[:3].ljust(4) for _ in range(tokens))


def modelled(asked: list[Asked]) -> list[Served]:
    profile = dataclasses.replace(H100_32B, kv_capacity_tokens=FACTS.kv_blocks * FACTS.block_tokens)
    served = simulated([[each] for each in asked], profile, FACTS, workers=WORKERS, overhead_s=0.0)
    return [answer for (answer,) in served]


@asynccontextmanager
async def worker() -> AsyncIterator[str]:
    """A simulated worker process, fifty times as fast as it models; one of its blocks is reserved."""
    port = free_port()
    flags = ["--port", str(port), "--model", MODEL, "--events-port", "0", "--time-scale", "50"]
    flags += ["--block-size", str(FACTS.block_tokens), "--blocks", str(FACTS.kv_blocks + 1)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "simulator", "worker", *flags, cwd=ROOT,
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with asyncio.timeout(READY_WITHIN_S), httpx.AsyncClient(trust_env=False) as client:
            while True:
                with suppress(httpx.HTTPError):
                    if (await client.get(f"http://127.0.0.1:{port}/health")).status_code == 200:
                        break
                await asyncio.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        await process.wait()

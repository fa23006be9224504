"""Two routers on one Valkey: a conversation finds its worker whichever of them a turn reaches, and no text leaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
import redis.asyncio as redis

from router.contract.channels import PEER_LOAD_HASH
from tests import services
from tests.router.conftest import RunningRouter, StartRouter, chat, snapshot_for
from tests.router.scripted_worker import ScriptedWorker

WORKERS = 4
CONVERSATIONS = 8
MET_WITHIN_S = 10
TOLD_WITHIN_S = 0.6
"""Two publications, and the reading of them."""


@pytest.fixture
def redis_url(tmp_path: Path) -> Iterator[str]:
    with services.private_valkey(tmp_path) as url:
        yield url


@pytest_asyncio.fixture
async def workers() -> AsyncIterator[list[ScriptedWorker]]:
    started = [await ScriptedWorker().start() for _ in range(WORKERS)]
    yield started
    for worker in started:
        await worker.stop()


async def _pair(start: StartRouter, workers: list[ScriptedWorker], redis_url: str) -> list[RunningRouter]:
    """The first router may use one worker only, so that prompts lie where the second would not look for them."""
    snapshot = snapshot_for([worker.url for worker in workers])
    drained = {
        name: entry if name == "p/w1" else msgspec.structs.replace(entry, state="drain")
        for name, entry in snapshot.workers.items()
    }
    first = await start(msgspec.structs.replace(snapshot, workers=drained), router_id="r1", redis_url=redis_url)
    second = await start(snapshot, router_id="r2", redis_url=redis_url)
    for _ in range(MET_WITHIN_S * 20):
        if first.runtime.table.other_routers == second.runtime.table.other_routers == 1:
            return [first, second]
        await asyncio.sleep(0.05)
    raise AssertionError("the routers never met")


def _completions(workers: list[ScriptedWorker]) -> list[int]:
    return [sum(bool(asked.body) for asked in worker.asked) for worker in workers]


async def test_a_turn_follows_the_one_before_it_at_another_router(
    start_router: StartRouter, workers: list[ScriptedWorker], redis_url: str
) -> None:
    first, second = await _pair(start_router, workers, redis_url)
    texts = [f"conversation {number}: " + f"what was said {number} " * 700 for number in range(CONVERSATIONS)]
    for text in texts:
        assert (await first.post(chat(text))).status_code == 200
    assert _completions(workers) == [CONVERSATIONS, 0, 0, 0]
    await asyncio.sleep(TOLD_WITHIN_S)
    for text in texts:
        assert (await second.post(chat(text + " and then?"))).status_code == 200
    assert _completions(workers) == [2 * CONVERSATIONS, 0, 0, 0]


async def test_a_prompt_that_nobody_sent_goes_where_it_likes(
    start_router: StartRouter, workers: list[ScriptedWorker], redis_url: str
) -> None:
    """Else the test above would prove nothing."""
    _, second = await _pair(start_router, workers, redis_url)
    for number in range(CONVERSATIONS):
        assert (await second.post(chat(f"alone {number} " * 700))).status_code == 200
    assert sum(count > 0 for count in _completions(workers)) > 1


async def test_valkey_holds_no_text_key_or_block_hash(
    start_router: StartRouter, workers: list[ScriptedWorker], redis_url: str
) -> None:
    pair = await _pair(start_router, workers, redis_url)
    text = "a secret plan " * 800
    assert (await pair[0].post(chat(text))).status_code == 200
    client = redis.Redis.from_url(redis_url)
    said = b""
    for _ in range(100):
        said = await client.hget(PEER_LOAD_HASH, "r1") or b""
        if b'"placed"' in said:
            break
        await asyncio.sleep(0.05)
    grant = pair[0].runtime.table.grant_of("acme/support", model="m")
    await client.aclose()
    assert b'"placed"' in said and b"secret" not in said and grant.salt.encode() not in said

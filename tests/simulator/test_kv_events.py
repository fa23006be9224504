"""Live events and replay, read as a subscriber reads them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from simulator.engine import EngineLimits
from tests.simulator.conftest import LiveWorker, StartWorker

TEXT = "events tell which blocks are cached, and which are gone again, by their hashes " * 8
END = b"\xff" * 8


@pytest.fixture
async def context() -> AsyncIterator[zmq.asyncio.Context]:
    made = zmq.asyncio.Context()
    yield made
    made.destroy(linger=0)


async def subscribed(context: zmq.asyncio.Context, worker: LiveWorker) -> zmq.asyncio.Socket:
    source = (await worker.http.get("/kv_event_sources")).json()["0"]
    socket = context.socket(zmq.SUB)
    socket.connect(source["endpoint"])
    socket.subscribe(source["topic"])
    await asyncio.sleep(0.2)  # a subscription takes effect some time after it was made
    return socket


async def received(socket: zmq.asyncio.Socket) -> tuple[int, list[Any]]:
    topic, number, payload = await asyncio.wait_for(socket.recv_multipart(), 5)
    assert topic == b"kv@w1@sim-llama"
    return int.from_bytes(number, "big"), msgspec.msgpack.decode(payload)


async def replayed(context: zmq.asyncio.Context, worker: LiveWorker, start: int) -> list[tuple[int, bytes]]:
    source = (await worker.http.get("/kv_event_sources")).json()["0"]
    socket = context.socket(zmq.DEALER)
    socket.connect(source["replay_endpoint"])
    await socket.send_multipart([b"", start.to_bytes(8, "big")])
    batches = []
    while True:
        empty, topic, number, payload = await asyncio.wait_for(socket.recv_multipart(), 5)
        assert empty == b""
        if number == END:
            assert (topic, payload) == (b"", b"")
            return batches
        assert topic == b"kv@w1@sim-llama"
        batches.append((int.from_bytes(number, "big"), payload))


async def test_it_announces_stored_blocks_in_the_recorded_shape(
    worker: LiveWorker, context: zmq.asyncio.Context
) -> None:
    socket = await subscribed(context, worker)
    await worker.chat(TEXT, cache_salt="tenant-a")
    number, (ts, events, rank) = await received(socket)
    (event,) = events
    blocks = len(event["block_hashes"])
    assert (number, rank) == (0, 0)
    assert ts > 1e9
    assert list(event) == [
        "type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
        "extra_keys", "group_idx", "kv_cache_spec_kind",
    ]  # fmt: skip
    assert event["parent_block_hash"] is None
    assert len(event["token_ids"]) == blocks * event["block_size"]
    assert event["extra_keys"] == [["tenant-a"], *[None] * (blocks - 1)]
    assert (event["medium"], event["group_idx"]) == ("GPU", 0)


async def test_it_announces_a_clear_with_the_next_requests_batch(
    worker: LiveWorker, context: zmq.asyncio.Context
) -> None:
    socket = await subscribed(context, worker)
    await worker.chat(TEXT)
    await received(socket)
    assert (await worker.http.post("/reset_prefix_cache")).json() == {"success": True}
    assert await worker.cached_tokens(TEXT) == 0
    _, (_, events, _) = await received(socket)
    assert events[0] == {"type": "AllBlocksCleared"}
    assert events[1]["type"] == "BlockStored"


async def test_it_announces_evictions(start_worker: StartWorker, context: zmq.asyncio.Context) -> None:
    worker = await start_worker(limits=EngineLimits(blocks=16))
    socket = await subscribed(context, worker)
    await worker.chat(TEXT)
    _, (_, stored, _) = await received(socket)
    await worker.chat(TEXT[::-1])
    _, (_, events, _) = await received(socket)
    removed = [event for event in events if event["type"] == "BlockRemoved"]
    assert removed[0]["block_hashes"] == [stored[0]["block_hashes"][-1]]
    assert removed[0].keys() == {"type", "block_hashes", "medium", "group_idx"}


async def test_it_replays_what_was_sent(worker: LiveWorker, context: zmq.asyncio.Context) -> None:
    for number in range(3):
        await worker.chat(f"{number} {TEXT}")
    whole = await replayed(context, worker, 0)
    assert [number for number, _ in whole] == list(range(len(whole)))
    assert await replayed(context, worker, 2) == whole[2:]
    assert await replayed(context, worker, 99) == []


async def test_it_keeps_only_the_last_batches_and_does_not_say_so(
    worker: LiveWorker, context: zmq.asyncio.Context
) -> None:
    publisher = worker.app.publisher
    assert publisher is not None
    for _ in range(publisher.buffer_steps + 5):
        publisher.publish([], at=1.0, lost=lambda: True)
    numbers = [number for number, _ in await replayed(context, worker, 0)]
    assert numbers[0] == 5
    assert len(numbers) == publisher.buffer_steps


async def test_it_can_lose_live_batches_that_replay_still_has(worker: LiveWorker, context: zmq.asyncio.Context) -> None:
    socket = await subscribed(context, worker)
    await worker.fault(drop_events=1.0)
    await worker.chat(TEXT)
    await worker.fault(drop_events=0.0)
    await worker.chat(TEXT[::-1])
    number, _ = await received(socket)
    assert number == 1
    assert [n for n, _ in await replayed(context, worker, 0)] == [0, 1]


async def test_it_offers_no_source_without_events(start_worker: StartWorker) -> None:
    worker = await start_worker(events_port=0)
    assert (await worker.http.get("/kv_event_sources")).json() == {}
    assert (await worker.chat(TEXT)).status_code == 200

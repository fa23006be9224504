"""The adapter against simulated workers, through real sockets: the index holds what the worker's cache holds."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from router.adapters import kv_events
from router.adapters.kv_events import EventEndpoint, KvEventFeeds
from router.contract.ids import WorkerId
from router.core.exact.block_index import BlockIndex, Holder, Tier
from router.core.exact.event_stream import EventStream, StreamReport
from simulator.engine import EngineLimits
from tests.exact_index.naive import Content, NaiveWorker, apply, batch, stored
from tests.simulator.conftest import LiveWorker, StartWorker

W1 = WorkerId("p/w1")
SMALL = EngineLimits(blocks=128, block_size_tokens=16)


class Followed:
    def __init__(self) -> None:
        self.index = BlockIndex(bytes_max=1 << 22)
        self.feeds = KvEventFeeds(self.index, clock=time.monotonic)

    def follow(self, worker: LiveWorker, name: WorkerId = W1, **settings: Any) -> None:
        publisher = worker.app.publisher
        assert publisher is not None
        self.feeds.follow([EventEndpoint(name, publisher.endpoint, publisher.replay_endpoint, **settings)])

    @property
    def report(self) -> StreamReport:
        return self.feeds.reports()[0]

    def is_exact(self) -> bool:
        return self.index.is_exact(W1, now=time.monotonic())


@pytest.fixture
async def followed(monkeypatch) -> AsyncIterator[Followed]:
    monkeypatch.setattr(kv_events, "TICK_S", 0.1)
    made = Followed()
    yield made
    await made.feeds.close()


async def until(condition: Callable[[], bool], *, limit_s: float = 8.0) -> None:
    ends_at = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < ends_at, "it did not come to pass"
        await asyncio.sleep(0.02)


async def replayed_content(worker: LiveWorker) -> Content:
    """The worker's cache by its own replay from 0, in a naive model."""
    publisher = worker.app.publisher
    assert publisher is not None and publisher._next_number <= publisher.buffer_steps
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.DEALER)
    socket.connect(publisher.replay_endpoint)
    await socket.send_multipart([b"", (0).to_bytes(8, "big")])
    content: Content = Content()
    while True:
        _, _, number, payload = await asyncio.wait_for(socket.recv_multipart(), 5)
        if number == b"\xff" * 8:
            context.destroy(linger=0)
            return content
        content = apply(content, msgspec.msgpack.decode(payload)[1])


def content_is(index: BlockIndex, content: Content) -> bool:
    blocks = {block for _, block in content}
    held = {block for block in blocks if any(entry.holder.worker == W1 for entry in index.entries(block))}
    return held == blocks and index.resident(W1).device == len(blocks)


async def random_chats(worker: LiveWorker, count: int, *, seed: int) -> None:
    """Conversations that share heads and together are several times as large as the cache."""
    dice = random.Random(seed)
    heads = [" ".join(str(dice.randrange(10**6)) for _ in range(60)) for _ in range(4)]
    for at in range(0, count, 4):
        texts = [
            f"{dice.choice(heads)} {dice.randrange(10**9)} " * dice.randint(1, 3) for _ in range(min(4, count - at))
        ]
        salts = [dice.choice(("salt-a", "salt-b")) for _ in texts]
        answers = [worker.chat(text, cache_salt=salt) for text, salt in zip(texts, salts, strict=True)]
        for answer in await asyncio.gather(*answers):
            answer.raise_for_status()


async def test_the_index_holds_what_the_engine_holds_after_evictions(
    start_worker: StartWorker, followed: Followed
) -> None:
    worker = await start_worker(limits=SMALL)
    followed.follow(worker, capacity_blocks=worker.app.engine.cache.capacity_blocks)
    await random_chats(worker, 40, seed=1)
    assert worker.app.engine.cache.evictions > 50
    content = await replayed_content(worker)
    await until(lambda: followed.is_exact() and content_is(followed.index, content))
    assert followed.index.resident(W1).device == worker.app.engine.cache.resident_blocks
    assert followed.report.counts.removed_unknown == 0


async def test_it_holds_the_same_with_10_percent_of_events_dropped_a11(
    start_worker: StartWorker, followed: Followed
) -> None:
    worker = await start_worker(limits=SMALL)
    followed.follow(worker)
    # Followed live from the start: what is published before the first replay would come with it, dropped or not.
    await until(followed.is_exact)
    await worker.fault(drop_events=0.1)
    await random_chats(worker, 80, seed=2)
    assert worker.app.engine.cache.evictions > 50
    content = await replayed_content(worker)
    await until(lambda: followed.is_exact() and content_is(followed.index, content))
    assert followed.report.counts.gaps > 0 and followed.report.counts.lost_messages == 0


async def test_a_router_that_joins_late_learns_the_whole_cache_c11(
    start_worker: StartWorker, followed: Followed
) -> None:
    worker = await start_worker(limits=SMALL)
    await random_chats(worker, 20, seed=3)
    content = await replayed_content(worker)
    followed.follow(worker)
    assert not followed.is_exact()
    await until(lambda: followed.is_exact() and content_is(followed.index, content))


async def test_a_cache_cleared_on_request_is_empty_here_too_c5(start_worker: StartWorker, followed: Followed) -> None:
    worker = await start_worker()
    followed.follow(worker)
    await worker.chat("before the clear " * 40)
    await until(lambda: followed.index.resident(W1).device > 5)
    assert (await worker.http.post("/reset_prefix_cache")).json() == {"success": True}
    await worker.chat("after the clear " * 20)
    content = await replayed_content(worker)
    await until(lambda: followed.report.counts.cleared == 1 and content_is(followed.index, content))


async def test_salts_reach_only_who_asked(start_worker: StartWorker, followed: Followed) -> None:
    worker = await start_worker()
    followed.follow(worker)
    await until(followed.is_exact)
    seen: list[str] = []
    followed.feeds.watch_salts(W1, seen.append)
    await worker.chat("a salted text " * 40, cache_salt="salt-of-acme")
    await until(lambda: seen == ["salt-of-acme"])


class Publisher:
    """A worker's sockets without a worker: says what a test tells it to."""

    def __init__(self, *ports: int) -> None:
        """On `ports` for events and replays, or on free ones."""
        self.worker = NaiveWorker(buffer_steps=10_000)
        self.replays = 0
        self.mute = False
        self._context = zmq.asyncio.Context()
        self._live = self._context.socket(zmq.PUB)
        self._router = self._context.socket(zmq.ROUTER)
        for socket, port in zip((self._live, self._router), ports or (0, 0), strict=True):
            socket.bind(f"tcp://127.0.0.1:{port}")
        self.endpoints = [socket.getsockopt(zmq.LAST_ENDPOINT).decode() for socket in (self._live, self._router)]
        self._serving = asyncio.create_task(self._serve())

    def endpoint(self, **settings: Any) -> EventEndpoint:
        events, replay = self.endpoints
        return EventEndpoint(W1, **({"events": events, "replay": replay} | settings))

    async def send(self, seq: int, payload: bytes) -> None:
        await self._live.send_multipart([b"kv@w1", seq.to_bytes(8, "big"), payload])

    async def send_frames(self, *frames: bytes) -> None:
        await self._live.send_multipart(frames)

    async def say(self, *hashes: int) -> None:
        await self.send(*self.worker.publish(stored(list(hashes))))

    async def _serve(self) -> None:
        while True:
            client, empty, start = await self._router.recv_multipart()
            self.replays += 1
            if self.mute:
                continue
            for seq, payload in self.worker.replay(int.from_bytes(start, "big")):
                await self._router.send_multipart([client, empty, b"kv@w1", seq.to_bytes(8, "big"), payload])
            await self._router.send_multipart([client, empty, b"", b"\xff" * 8, b""])

    async def close(self) -> None:
        self._serving.cancel()
        await asyncio.gather(self._serving, return_exceptions=True)
        self._context.destroy(linger=0)


@pytest.fixture
async def publisher() -> AsyncIterator[Publisher]:
    made = Publisher()
    yield made
    await made.close()


def has(followed: Followed, *hashes: int) -> bool:
    match = followed.index.depth(Holder(W1), hashes, now=time.monotonic())
    return match is not None and match.blocks == len(hashes)


async def test_a_gap_is_replayed_and_a_restart_is_forgotten_c1_c7(followed: Followed, publisher: Publisher) -> None:
    followed.feeds.follow([publisher.endpoint()])
    await until(followed.is_exact)
    await publisher.say(1)
    publisher.worker.publish(stored([2]))
    await publisher.say(3)
    await until(lambda: has(followed, 1) and has(followed, 2) and has(followed, 3))
    publisher.worker.restart()
    await publisher.say(9)
    await until(lambda: has(followed, 9) and not has(followed, 1))


async def test_frames_of_any_shape_end_nothing(followed: Followed, publisher: Publisher) -> None:
    followed.feeds.follow([publisher.endpoint()])
    await until(followed.is_exact)
    await publisher.send_frames(b"one frame")
    await publisher.send_frames(b"kv", b"short", b"x")
    await publisher.send_frames(b"kv", (2**64 - 1).to_bytes(8, "big"), b"far away")
    await publisher.say(1)
    await until(lambda: has(followed, 1))


async def test_a_replay_that_is_never_answered_degrades_in_time(
    followed: Followed, publisher: Publisher, monkeypatch
) -> None:
    monkeypatch.setattr(kv_events, "REPLAY_S", 0.3)
    publisher.mute = True
    followed.feeds.follow([publisher.endpoint()])
    await until(lambda: followed.report.state == "degraded")
    assert followed.report.reason == "no_replay"
    assert not followed.is_exact()


async def test_jumping_numbers_do_not_make_a_flood_of_replays(followed: Followed, publisher: Publisher) -> None:
    followed.feeds.follow([publisher.endpoint()])
    await until(followed.is_exact)
    publisher.replays = 0
    for _ in range(300):
        await publisher.send(random.randrange(1, 1000), batch(stored([1]), ts=random.random()))
    await asyncio.sleep(1.0)
    assert 1 <= publisher.replays <= 6


async def test_a_lost_connection_ends_exactness_and_a_returning_worker_is_asked(
    followed: Followed, publisher: Publisher
) -> None:
    followed.feeds.follow([publisher.endpoint()])
    await until(followed.is_exact)
    await publisher.say(1)
    await until(lambda: has(followed, 1))
    await publisher.close()
    await until(lambda: followed.report.state == "down")
    assert not followed.is_exact() and not has(followed, 1)
    again = Publisher(*(int(address.rpartition(":")[2]) for address in publisher.endpoints))
    again.worker.publish(stored([5]))
    await until(lambda: has(followed, 5) and not has(followed, 1))
    await again.close()


async def test_an_unusable_address_is_a_worker_that_is_down(followed: Followed) -> None:
    followed.feeds.follow([EventEndpoint(W1, "no address at all", "neither")])
    await asyncio.sleep(0.1)
    assert followed.report.state == "down" and not followed.is_exact()


async def test_following_is_level_triggered(followed: Followed, publisher: Publisher) -> None:
    followed.feeds.follow([publisher.endpoint()])
    await until(followed.is_exact)
    await publisher.say(1, 2)
    await until(lambda: has(followed, 1, 2))
    followed.feeds.follow([publisher.endpoint(capacity_blocks=50)])
    assert has(followed, 1, 2), "a capacity is a fact that changes nothing else"
    followed.feeds.follow([publisher.endpoint(block_size_tokens=32)])
    assert not has(followed, 1)
    await until(lambda: followed.report.reason == "block_size")
    followed.feeds.follow([])
    assert followed.feeds.reports() == [] and followed.index.resident(W1).device == 0


async def test_a_revoked_worker_is_not_hit_at_once(followed: Followed, publisher: Publisher) -> None:
    followed.feeds.follow([publisher.endpoint()])
    await until(followed.is_exact)
    await publisher.say(1)
    await until(lambda: has(followed, 1))
    followed.feeds.revoke([W1])
    assert not has(followed, 1) and not followed.is_exact()


async def test_forged_events_are_off_within_the_answers_that_show_it_a13(
    followed: Followed, publisher: Publisher
) -> None:
    followed.feeds.follow([publisher.endpoint(block_size_tokens=16)])
    await until(followed.is_exact)
    await publisher.say(*range(100))
    await until(lambda: has(followed, *range(100)))
    for _ in range(4):
        followed.feeds.judge(W1, predicted_tokens=1600, delivered_tokens=0)
    assert not followed.is_exact() and followed.report.reason == "credit"


async def test_a_burst_holds_the_loop_only_shortly(followed: Followed, publisher: Publisher, monkeypatch) -> None:
    """Counted in steps, not in seconds: a step is a bounded number of blocks, and slices end after each one."""
    monkeypatch.setattr(kv_events, "SLICE_S", 0.0)
    steps = 0
    turns = 0
    real = EventStream.step

    def counted(stream: EventStream) -> bool:
        nonlocal steps
        steps += 1
        return real(stream)

    monkeypatch.setattr(EventStream, "step", counted)
    followed.feeds.follow([publisher.endpoint()])
    await until(followed.is_exact)
    for at in range(200):
        await publisher.say(*range(at * 10, at * 10 + 10))
    steps = turns = 0
    while not has(followed, *range(2000)):
        before = steps
        await asyncio.sleep(0)
        turns += 1
        assert steps - before <= 2, "one step a slice, and the one that finds nothing left"
    assert followed.index.resident_of(Holder(W1)).device == 2000
    assert Tier.DEVICE in {entry.tier for entry in followed.index.entries(5)}

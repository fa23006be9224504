"""Follows the KV events of all workers and keeps the exact block index: one `KvEventFeeds` for each router process.

    feeds = KvEventFeeds(index, clock=time.monotonic)      # the clock that `index.matches(now=…)` is asked with
    feeds.follow(endpoints)                                # level-triggered, on every snapshot; needs a running loop
    feeds.judge(worker, predicted_tokens=…, delivered_tokens=…); feeds.note_answer(worker, …)   # after each answer
    feeds.revoke(workers); feeds.reports(); await feeds.close()

Everything runs on the loop's thread: sockets are drained into queues, and a pump works the queues off in slices of
SLICE_S, so that requests wait no longer than that. Numbers, gaps and lives are judged in `router.core.exact`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import zmq
from zmq.utils.monitor import parse_monitor_message

from router.adapters.kv_event_sockets import HANDSHAKE_SUCCEEDED, LOST, Inlet, replay_client, subscriber
from router.contract.ids import WorkerId
from router.core.exact.block_index import BlockIndex, Holder
from router.core.exact.event_stream import Ask, EventStream, StreamReport

log = logging.getLogger(__name__)

SLICE_S = 0.001
"""The pump gives the loop back after this long; one step more may be under way."""
TICK_S = 1.0
SWEEP_PAUSE_S = 0.01
"""Between two shards of wiped entries: 0.4 ms of work each."""
REPLAY_S = 30.0
"""A replay that is not complete by then counts as none: 10,000 batches of 40 KB take 10 s."""
REPLAY_MESSAGES_MAX = 50_000
REPLAY_BYTES_MAX = 1024 * 1024 * 1024
"""Not held at one time: a bound on what a worker may make us read."""
REPLAY_PAUSE_S = 0.25
"""At most four replays a second of one worker, however its numbers jump."""
SUBSCRIBE_S = 0.1
"""From the handshake until the publisher has noted the subscription, generously: what is replayed after that, and
what is published after that, leaves no hole between."""
END_OF_REPLAY = b"\xff" * 8
SOCKETS_MAX = 8192
"""Three for each worker's rank: subscription, its monitor, replay."""


@dataclass(frozen=True, slots=True)
class EventEndpoint:
    """One rank of one worker."""

    worker: WorkerId
    events: str
    """`tcp://host:port` of its PUB socket."""
    replay: str = ""
    """`tcp://host:port` of its ROUTER socket; empty: no replays, so only a worker seen from its start is exact."""
    rank: int = 0
    block_size_tokens: int | None = None
    """As its configuration says; None: learnt from the first event."""
    capacity_blocks: int | None = None
    """Blocks of its device cache; None: not checked."""

    @property
    def holder(self) -> Holder:
        return Holder(self.worker, self.rank)


class KvEventFeeds:
    def __init__(
        self, index: BlockIndex, *, clock: Callable[[], float], lost: Callable[[WorkerId], None] | None = None
    ) -> None:
        """`lost`: told of a worker that restarted, cleared its cache or can no longer be heard."""
        self._index = index
        self._clock = clock
        self._lost = lost or (lambda worker: None)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, SOCKETS_MAX)
        self._links: dict[Holder, _Link] = {}
        self._of_worker: dict[WorkerId, list[EventStream]] = {}
        self._pump = _Pump()
        self._timers: list[asyncio.TimerHandle] = []

    def follow(self, endpoints: Iterable[EventEndpoint]) -> None:
        """Follow exactly these. A changed address or block size begins anew; a changed capacity does not."""
        wanted = {endpoint.holder: endpoint for endpoint in endpoints}
        for holder, link in list(self._links.items()):
            if holder not in wanted or not link.serves(wanted[holder]):
                link.close()
                del self._links[holder]
        for holder, endpoint in wanted.items():
            if holder not in self._links:
                stream = _stream(self._index, endpoint)
                self._links[holder] = _Link(endpoint, stream, self._context, self._pump, self._clock, self._lost)
            self._links[holder].stream.capacity_blocks = endpoint.capacity_blocks
        self._of_worker = {}
        for holder, link in self._links.items():
            self._of_worker.setdefault(holder.worker, []).append(link.stream)
        if not self._timers:
            loop = asyncio.get_running_loop()
            self._timers = [loop.call_later(TICK_S, self._tick), loop.call_later(SWEEP_PAUSE_S, self._sweep)]

    async def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers = []
        for link in self._links.values():
            link.close()
        self._links.clear()
        self._of_worker.clear()
        # Waits for the sockets' last bytes to be dropped, which LINGER 0 makes short.
        await asyncio.to_thread(self._context.term)

    def reports(self) -> list[StreamReport]:
        return [link.stream.report() for link in self._links.values()]

    def revoke(self, workers: Iterable[WorkerId]) -> None:
        """Make all that these workers hold unhittable at once (S3.8), until they restart or clear their caches."""
        for worker in workers:
            for stream in self._streams(worker):
                stream.revoke()

    def judge(self, worker: WorkerId, *, predicted_tokens: int, delivered_tokens: int) -> None:
        """An answer whose prediction came from an exact match (A13). Cap predictions as the worker does: a prompt is
        never fully cached."""
        for stream in self._streams(worker):
            stream.judge(predicted_tokens=predicted_tokens, delivered_tokens=delivered_tokens, now=self._clock())

    def note_answer(self, worker: WorkerId, *, computed_tokens: int, sent_at: float) -> None:
        """Every answer: prompt tokens that the worker computed itself, and when the request was sent (C15)."""
        for stream in self._streams(worker):
            stream.note_answer(computed_tokens=computed_tokens, sent_at=sent_at, now=self._clock())

    def watch_salts(self, worker: WorkerId, seen: Callable[[str], None] | None) -> None:
        """Evidence of isolation, on request; see `EventStream.watch_salts`."""
        for stream in self._streams(worker):
            stream.watch_salts(seen)

    def _streams(self, worker: WorkerId) -> list[EventStream]:
        return self._of_worker.get(worker, [])

    def _tick(self) -> None:
        for link in self._links.values():
            link.tick()
        self._timers[0] = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _sweep(self) -> None:
        pause_s = SWEEP_PAUSE_S if self._index.sweep(blocks_max=1) else TICK_S
        self._timers[1] = asyncio.get_running_loop().call_later(pause_s, self._sweep)


class _Pump:
    """Works off the queues of all links in turn."""

    def __init__(self) -> None:
        self._busy: deque[_Link] = deque()
        self._scheduled = False

    def wake(self, link: _Link) -> None:
        if not link.queued:
            link.queued = True
            self._busy.append(link)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        ends_at = time.perf_counter() + SLICE_S
        while self._busy:
            link = self._busy[0]
            while not link.closed and link.stream.step():
                if time.perf_counter() >= ends_at:
                    self._busy.rotate(-1)
                    link.settle()
                    self._schedule()
                    return
            self._busy.popleft()
            link.queued = False
            link.settle()


class _Link:
    """The sockets of one rank. Feeds its stream; decides nothing."""

    def __init__(
        self,
        endpoint: EventEndpoint,
        stream: EventStream,
        context: zmq.Context[zmq.Socket[bytes]],
        pump: _Pump,
        clock: Callable[[], float],
        lost: Callable[[WorkerId], None],
    ) -> None:
        self.endpoint = endpoint
        self.stream = stream
        self.queued = False
        """Whether the pump has it in its queue."""
        self._context = context
        self._pump = pump
        self._clock = clock
        self._lost = lost
        self._exact = False
        """Whether the stream was exact when the link was last settled."""
        self._losses = 0
        """Restarts and clears that were told."""
        self._said = ""
        self._replay: _Replay | None = None
        self._replay_timer: asyncio.TimerHandle | None = None
        self._replayed_at = float("-inf")
        self.closed = False
        self._socket = subscriber(context)
        monitor = self._socket.get_monitor_socket(HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED)
        self._events = Inlet(self._socket, self._take, wants=lambda: stream.wants_live)
        self._connection = Inlet(monitor, self._take_connection, wants=lambda: True)
        try:
            self._socket.connect(endpoint.events)
        except zmq.ZMQError as error:
            log.warning("KV events of %s: the address cannot be used: %s", endpoint.worker, error)

    def serves(self, endpoint: EventEndpoint) -> bool:
        return replace(endpoint, capacity_blocks=None) == replace(self.endpoint, capacity_blocks=None)

    def close(self) -> None:
        self.closed = True
        self._end_replay()
        if self._replay_timer is not None:
            self._replay_timer.cancel()
        self._socket.disable_monitor()
        self._connection.close()
        self._events.close()
        self.stream.close()

    def tick(self) -> None:
        self.stream.tick(now=self._clock())
        self.settle()

    def settle(self) -> None:
        """After any work of the stream: serve what it wants."""
        if self.closed:
            return
        if self.stream.exact and not self._exact:
            # A replay made up for a gap: the index is vouched for at once, since at every tick a busy worker that loses
            # a tenth of its batches would have the next gap already (A11).
            self.stream.tick(now=self._clock())
        self._exact = self.stream.exact
        self._events.resume()
        if self._replay is not None:
            self._replay.inlet.resume()
        self._serve_ask()
        self._tell_losses()
        self._say_state()

    def _take(self, frames: list[bytes]) -> None:
        if len(frames) != 3 or len(frames[1]) != 8:
            log.warning("KV events of %s: a message of %d frames ignored", self.endpoint.worker, len(frames))
            return
        self.stream.receive(int.from_bytes(frames[1], "big"), frames[2], now=self._clock())
        self._pump.wake(self)

    def _take_connection(self, frames: list[bytes]) -> None:
        event = parse_monitor_message(frames)["event"]
        if event == HANDSHAKE_SUCCEEDED:
            self._replayed_at = max(self._replayed_at, self._clock() + SUBSCRIBE_S - REPLAY_PAUSE_S)
            self.stream.connect()
        elif event in LOST:
            was_connected = self.stream.connected
            self.stream.disconnect()
            if was_connected:
                self._lost(self.endpoint.worker)
        self._pump.wake(self)

    def _tell_losses(self) -> None:
        losses = self.stream.counts.restarts + self.stream.counts.cleared
        if losses != self._losses:
            self._losses = losses
            self._lost(self.endpoint.worker)

    def _serve_ask(self) -> None:
        """The newest ask replaces the replay under way, not before REPLAY_PAUSE_S have passed since the last one."""
        ask = self.stream.ask
        if self._replay is not None and self._replay.ask == ask:
            return
        self._end_replay()
        if ask is None or self._replay_timer is not None:
            return
        pause_s = max(0.0, self._replayed_at + REPLAY_PAUSE_S - self._clock())
        self._replay_timer = asyncio.get_running_loop().call_later(pause_s, self._begin_replay)

    def _begin_replay(self) -> None:
        self._replay_timer = None
        ask = self.stream.ask
        if ask is None or self._replay is not None:
            return
        self._replayed_at = self._clock()
        try:
            self._replay = _Replay(self, ask, self._context)
        except zmq.ZMQError as error:
            log.warning("KV replay of %s: the address cannot be used: %s", self.endpoint.worker, error)
            self.stream.replay_fail(ask)
            self._pump.wake(self)

    def replay_done(self) -> None:
        """Called by the replay; what it brought is worked off before the link is settled."""
        self._end_replay()
        self._pump.wake(self)

    def replayed(self) -> None:
        self._pump.wake(self)

    def _end_replay(self) -> None:
        if self._replay is not None:
            self._replay.close()
            self._replay = None

    def _say_state(self) -> None:
        said = f"{self.stream.state} {self.stream.reason}".rstrip()
        if said != self._said:
            level = logging.WARNING if self.stream.state in ("degraded", "silent") else logging.INFO
            log.log(level, "KV events of %s rank %d: %s", self.endpoint.worker, self.endpoint.rank, said)
            self._said = said


class _Replay:
    """One request and its answer, bounded in time, messages and bytes. Raises zmq.ZMQError for a bad address."""

    def __init__(self, link: _Link, ask: Ask, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.ask = ask
        self._link = link
        self._messages = 0
        self._size_bytes = 0
        socket = replay_client(context)
        try:
            socket.connect(link.endpoint.replay)
            socket.send_multipart([b"", ask.start.to_bytes(8, "big")], zmq.NOBLOCK)
        except zmq.ZMQError:
            socket.close(0)
            raise
        self._deadline = asyncio.get_running_loop().call_later(REPLAY_S, self._fail)
        self.inlet = Inlet(socket, self._take, wants=lambda: link.stream.wants_replayed)

    def close(self) -> None:
        self._deadline.cancel()
        self.inlet.close()

    def _take(self, frames: list[bytes]) -> None:
        if len(frames) != 4 or len(frames[2]) != 8:
            self._fail()
            return
        if frames[2] == END_OF_REPLAY:
            self._link.stream.replay_end(self.ask)
            self._close_answered()
            return
        self._messages += 1
        self._size_bytes += len(frames[3])
        if self._messages > REPLAY_MESSAGES_MAX or self._size_bytes > REPLAY_BYTES_MAX:
            self._fail()
            return
        self._link.stream.replay_receive(self.ask, int.from_bytes(frames[2], "big"), frames[3])
        self._link.replayed()

    def _close_answered(self) -> None:
        """The socket is not needed any more; the stream keeps its ask until it has worked off what came."""
        self.close()
        self._link.replayed()

    def _fail(self) -> None:
        self._link.stream.replay_fail(self.ask)
        self._link.replay_done()


def _stream(index: BlockIndex, endpoint: EventEndpoint) -> EventStream:
    return EventStream(
        index,
        endpoint.holder,
        block_size_tokens=endpoint.block_size_tokens,
        capacity_blocks=endpoint.capacity_blocks,
        replayable=bool(endpoint.replay),
    )

"""One worker's event sockets: a SUB for live batches, a DEALER for replays. Feeds the tracker; decides nothing."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from controlplane.fleet.addresses import AddressRefused, parse_endpoint, pin
from controlplane.fleet.kv_events.messages import PAYLOAD_BYTES_MAX
from controlplane.fleet.kv_events.owners import Owners
from controlplane.fleet.kv_events.reporter import Reporter
from controlplane.fleet.kv_events.tracker import Ask, CacheTracker, Message

log = logging.getLogger(__name__)

LIVE_QUEUE_MESSAGES = 100_000
"""vLLM's own high-water mark: at least as much is taken on this side."""
REPLAY_S = 15.0
REPLAY_MESSAGES_MAX = 50_000
REPLAY_BYTES_MAX = 256 * 1024 * 1024
"""vLLM keeps 10,000 batches by default; a longer or larger answer is cut off and counts as none."""
RETRY_S = 30.0
"""A replay that was not answered is tried again after this long."""
TAIL_CHECK_S = 10.0
"""A lost batch shows when the next one comes; on a quiet worker it is looked for this often."""
END_OF_REPLAY = b"\xff" * 8
RECONNECT_MS, RECONNECT_MS_MAX = 200, 2_000
_CONNECTED = zmq.EVENT_HANDSHAKE_SUCCEEDED
_LOST = (zmq.EVENT_DISCONNECTED, zmq.EVENT_CLOSED)


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Of one worker, as configured; a change replaces the link."""

    worker_id: str
    events: str
    replay: str
    """Empty: no replay."""


class ReplayFailed(Exception):
    """No complete answer."""


class WorkerLink:
    """`run` until cancelled. `connected` and the tracker may be read at any time: everything is on one loop."""

    def __init__(
        self, context: zmq.asyncio.Context, endpoints: Endpoints, networks: Sequence[str], owners: Owners | None = None
    ) -> None:
        """`owners`: of its pool; without them nobody knows whose a block is."""
        self.endpoints = endpoints
        self.tracker = CacheTracker(owners.owner_of) if owners else CacheTracker()
        self.reporter = Reporter(endpoints.worker_id)
        self.connected = False
        self._context = context
        self._networks = networks
        self._replay_task: asyncio.Task[None] | None = None
        self._heard_at = self._checked_at = 0.0

    async def run(self) -> None:
        """Connects to the checked address (S17); a refused or unresolvable one is tried again."""
        while True:
            try:
                address = await self._pinned(self.endpoints.events)
            except AddressRefused as error:
                log.warning("events of %s: %s", self.endpoints.worker_id, error)
                await asyncio.sleep(RETRY_S)
                continue
            await self._listen(address)

    def check_tail(self, *, now: float) -> None:
        """Ask a quiet worker whether it has published more than was heard. `now`: monotonic seconds."""
        quiet_s = now - max(self._heard_at, self._checked_at)
        if quiet_s < TAIL_CHECK_S or not (self.connected and self.endpoints.replay and self.tracker.state == "live"):
            return
        self._checked_at = now
        self._request(self.tracker.reconnected())

    async def _pinned(self, endpoint: str) -> str:
        parsed = parse_endpoint(endpoint, schemes=("tcp",))
        return (await asyncio.to_thread(pin, parsed, networks=self._networks)).url

    async def _listen(self, address: str) -> None:
        socket = self._context.socket(zmq.SUB)
        socket.setsockopt(zmq.RCVHWM, LIVE_QUEUE_MESSAGES)
        socket.setsockopt(zmq.MAXMSGSIZE, PAYLOAD_BYTES_MAX)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MS_MAX)
        socket.setsockopt(zmq.IPV6, 1)
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        # A stopped host neither sends nor closes: the publisher's answers to heartbeats tell.
        socket.setsockopt(zmq.HEARTBEAT_IVL, 5_000)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 10_000)
        socket.subscribe(b"")
        monitor = socket.get_monitor_socket(_CONNECTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED)
        watching = asyncio.create_task(self._watch(monitor))
        try:
            socket.connect(address)
            await self._receive(socket)
        finally:
            watching.cancel()
            self._cancel_replay()
            socket.disable_monitor()
            monitor.close(0)
            socket.close(0)

    async def _watch(self, monitor: zmq.asyncio.Socket) -> None:
        """Every connection, the first one too, begins with a look at what the worker still has."""
        while True:
            event = parse_monitor_message(await monitor.recv_multipart())["event"]
            if event == _CONNECTED:
                self.connected = True
                self._request(self.tracker.reconnected())
            elif event in _LOST:
                self.connected = False

    async def _receive(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            frames = await socket.recv_multipart()
            if len(frames) != 3 or len(frames[1]) != 8:
                log.warning("events of %s: a message of %d frames ignored", self.endpoints.worker_id, len(frames))
                continue
            self.reporter.heard(at=time.time())
            self._heard_at = time.monotonic()
            self._request(self.tracker.live(int.from_bytes(frames[1], "big"), frames[2]))

    def _request(self, ask: Ask | None) -> None:
        """The newest request replaces the one in flight."""
        if ask is None:
            return
        self._cancel_replay()
        self._replay_task = asyncio.create_task(self._replay(ask))

    def _cancel_replay(self) -> None:
        # A replay that leads to the next one runs inside the task itself: it must not cancel itself.
        if self._replay_task is not None and self._replay_task is not asyncio.current_task():
            self._replay_task.cancel()

    async def _replay(self, ask: Ask) -> None:
        current: Ask | None = ask
        while current is not None:
            try:
                messages = await self._fetch(current)
            except (ReplayFailed, AddressRefused, zmq.ZMQError) as error:
                log.warning("replay of %s failed: %s", self.endpoints.worker_id, error)
                self.tracker.unanswered(current)
                if not self.endpoints.replay:
                    return
                await asyncio.sleep(RETRY_S)
                current = None if self.tracker.exact else self.tracker.begin()
                continue
            current = self.tracker.replayed(current, messages, at=time.time())

    async def _fetch(self, ask: Ask) -> list[Message]:
        if not self.endpoints.replay:
            raise ReplayFailed("no replay endpoint is configured")
        address = await self._pinned(self.endpoints.replay)
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, LIVE_QUEUE_MESSAGES)
        socket.setsockopt(zmq.MAXMSGSIZE, PAYLOAD_BYTES_MAX)
        socket.setsockopt(zmq.IPV6, 1)
        try:
            socket.connect(address)
            async with asyncio.timeout(REPLAY_S):
                await socket.send_multipart([b"", ask.start.to_bytes(8, "big")])
                return await self._collect(socket)
        except TimeoutError as error:
            raise ReplayFailed(f"no complete answer within {REPLAY_S:.0f} s") from error
        finally:
            socket.close(0)

    async def _collect(self, socket: zmq.asyncio.Socket) -> list[Message]:
        messages: list[Message] = []
        size_bytes = 0
        while True:
            frames = await socket.recv_multipart()
            if len(frames) != 4 or len(frames[2]) != 8:
                raise ReplayFailed(f"a message of {len(frames)} frames")
            if frames[2] == END_OF_REPLAY:
                return messages
            size_bytes += len(frames[3])
            if len(messages) >= REPLAY_MESSAGES_MAX or size_bytes > REPLAY_BYTES_MAX:
                raise ReplayFailed("the answer is too large")
            messages.append((int.from_bytes(frames[2], "big"), frames[3]))

"""ZeroMQ sockets of KV events, read from the event loop without a task or a future for each message.

`zmq.asyncio` costs some 40 µs a message; a plain socket that is drained when its descriptor turns readable costs 3.
The descriptor is edge-triggered: it must be drained until nothing is left, or read again later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import zmq

from router.core.exact.event_batches import PAYLOAD_BYTES_MAX

READ_MESSAGES = 32
"""Taken in one turn of the loop, about 0.1 ms."""
LIVE_QUEUE_MESSAGES = 2_000
"""Live batches that wait in the socket: a minute of a busy worker. The publisher drops what is beyond: a gap."""
REPLAY_QUEUE_MESSAGES = 256
"""Replayed batches that wait in the socket; the publisher waits for room."""
RECONNECT_MS, RECONNECT_MS_MAX = 200, 2_000
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 5_000, 10_000
"""A stopped host neither sends nor closes: the publisher's answers to heartbeats tell."""
HANDSHAKE_SUCCEEDED = zmq.EVENT_HANDSHAKE_SUCCEEDED
LOST = (zmq.EVENT_DISCONNECTED, zmq.EVENT_CLOSED)


class Inlet:
    """Hands the messages of one socket to `take`, for as long as `wants` says so; owns the socket."""

    def __init__(
        self, socket: zmq.Socket[bytes], take: Callable[[list[bytes]], None], *, wants: Callable[[], bool]
    ) -> None:
        self._socket = socket
        self._take = take
        self._wants = wants
        self._closed = False
        self._paused = False
        self._loop = asyncio.get_running_loop()
        self._descriptor = int(socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._descriptor, self.read)
        # What came before the descriptor was watched raises no edge.
        self._loop.call_soon(self.read)

    def read(self) -> None:
        """Take some messages; the rest in a later turn of the loop."""
        for _ in range(READ_MESSAGES):
            if self._closed:
                return
            self._paused = not self._wants()
            if self._paused:
                return
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._take(frames)
        self._loop.call_soon(self.read)

    def resume(self) -> None:
        """There may be room again."""
        if self._paused and not self._closed:
            self._paused = False
            self._loop.call_soon(self.read)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._descriptor)
            self._socket.close(0)


def subscriber(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
    """A SUB socket for all topics, not connected yet."""
    socket = context.socket(zmq.SUB)
    _harden(socket, queue_messages=LIVE_QUEUE_MESSAGES)
    socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MS_MAX)
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
    socket.subscribe(b"")
    return socket


def replay_client(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
    """A DEALER socket for one replay, not connected yet."""
    socket = context.socket(zmq.DEALER)
    _harden(socket, queue_messages=REPLAY_QUEUE_MESSAGES)
    return socket


def _harden(socket: zmq.Socket[bytes], *, queue_messages: int) -> None:
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVHWM, queue_messages)
    socket.setsockopt(zmq.MAXMSGSIZE, PAYLOAD_BYTES_MAX)
    socket.setsockopt(zmq.IPV6, 1)

"""Clients that keep asking with a key while it is revoked: raw connections, one request after another or pipelined."""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from dataclasses import dataclass, field

MODEL = "m"
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3})")
_STATUS_BYTES = 12
REFUSED = 401
RECONNECT_PAUSE_S = 0.05


@dataclass(slots=True)
class Asked:
    """Requests of one connection, in their order. Times are Unix seconds of this machine."""

    port: int
    sent: list[float] = field(default_factory=list)
    answered: list[float] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)


def request_bytes(port: int, key: str) -> bytes:
    body = b'{"model":"%b","messages":[{"role":"user","content":"hello"}]}' % MODEL.encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Racer(asyncio.Protocol):
    """Holds `depth` requests under way until it is told to stop, with a pause of `pause_s` before each next one.

    Where the router closes the connection, as it may for reasons of its own, another one goes on.
    """

    def __init__(self, port: int, key: str, *, depth: int = 1, pause_s: float = 0.0) -> None:
        self.asked = Asked(port)
        self._request = request_bytes(port, key)
        self._depth = depth
        self._pause_s = pause_s
        self._under_way: deque[float] = deque()
        self._tail = b""
        self._stopping = False
        self.reconnects = 0
        self._reconnecting: asyncio.Task[None] | None = None
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]  # TCP
        self._send(self._depth)

    def data_received(self, data: bytes) -> None:
        now, data = time.time(), self._tail + data
        end, count = 0, 0
        for found in _STATUS.finditer(data):
            self.asked.sent.append(self._under_way.popleft())
            self.asked.answered.append(now)
            self.asked.statuses.append(int(found[1]))
            end, count = found.end(), count + 1
        # A status line may come in two pieces; one that was counted must not be counted twice.
        self._tail = data[max(end, len(data) - _STATUS_BYTES + 1) :]
        if not self._stopping and count:
            if self._pause_s:
                asyncio.get_running_loop().call_later(self._pause_s, self._send, count)
            else:
                self._send(count)
        elif self._stopping and not self._under_way:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._under_way.clear()
        self._tail = b""
        if self._stopping:
            self._end()
        else:
            self.reconnects += 1
            self._reconnecting = asyncio.get_running_loop().create_task(self._connect_again())

    async def _connect_again(self) -> None:
        while not self._stopping:
            try:
                await asyncio.get_running_loop().create_connection(lambda: self, "127.0.0.1", self.asked.port)
                return
            except OSError:
                await asyncio.sleep(RECONNECT_PAUSE_S)
        self._end()

    def _end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def stop(self) -> None:
        """Sends no more; the connection ends with its last answer."""
        self._stopping = True
        if not self._under_way:
            self._transport.close()

    def _send(self, count: int) -> None:
        if self._stopping or self._transport.is_closing():
            self._transport.close()
            return
        self._under_way.extend([time.time()] * count)
        self._transport.write(self._request * count)


async def start_racer(port: int, key: str, *, depth: int = 1, pause_s: float = 0.0) -> Racer:
    loop = asyncio.get_running_loop()
    _, racer = await loop.create_connection(lambda: Racer(port, key, depth=depth, pause_s=pause_s), "127.0.0.1", port)
    return racer


async def finish(racers: list[Racer], *, within_s: float = 5.0) -> list[Asked]:
    for racer in racers:
        racer.stop()
    await asyncio.wait([racer.done for racer in racers], timeout=within_s)
    return [racer.asked for racer in racers]


def refused_at(asked: list[Asked], port: int) -> float | None:
    """When the first refusal reached a client of that router."""
    times = [
        at
        for one in asked
        if one.port == port
        for at, status in zip(one.answered, one.statuses, strict=True)
        if status == REFUSED
    ]
    return min(times, default=None)


def admitted_after(asked: list[Asked], acked_at: dict[int, float]) -> int:
    """Requests that were let in although they were sent after their router's acknowledgement, or came behind a refused
    one on the same connection, which serves its requests in order. `acked_at`: by port; a router without one counts
    from its first refusal."""
    wrong = 0
    for one in asked:
        acked = acked_at.get(one.port, float("inf"))
        refused = False
        for sent, status in zip(one.sent, one.statuses, strict=True):
            wrong += status == 200 and (refused or sent > acked)
            refused = refused or status == REFUSED
    return wrong

"""Connections to workers: one protocol object each, kept alive in a bounded pool per worker.

A connection serves one exchange at a time: `ask` sends the request, `answer_begun` says that the first body byte is
here, `relay` passes the body on, and one of `answer_complete` and `answer_failed` says how it ended. Nothing is sent
to the client before `answer_begun`, so until then another worker can be asked instead.

These are calls, not awaited results: a request needs no task, no future and no turn of the event loop of its own.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from time import monotonic
from typing import Protocol, cast

from router.http.answer_head import ANSWER_HEAD_BYTES_MAX, NO_HEAD, AnswerError, AnswerHead, parse_answer_head
from router.http.chunked import ChunkError
from router.http.known_head import around_length, length_between
from router.http.relay import Relay
from router.http.worker_url import WorkerUrlError, check_address, parse_worker_url


class UpstreamFailed(Exception):
    """The worker gave no usable answer. `kind` is one of telemetry's ERROR_KINDS."""

    def __init__(self, kind: str, reason: str, *, status: int | None = None, counts: bool = True) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
        self.status = status if status is not None else 504 if kind == "upstream_timeout" else 502
        """What the client is told."""
        self.counts = counts
        """Whether it is held against the worker's health."""


class StaleConnection(Exception):
    """A kept-alive connection was closed by the worker before it answered: the request is sent on a fresh one."""


class Exchange(Protocol):
    """Who asked. Of the last two exactly one is called, and nothing after it."""

    def answer_begun(self) -> None:
        """The answer's head and its first body byte (or an empty body's end) are here: `relay` is the next call."""

    def answer_complete(self) -> None:
        """The relay is complete. Not called when `relay` itself completed it."""

    def answer_failed(self, error: UpstreamFailed | StaleConnection) -> None: ...


class Sink(Protocol):
    """The client's side of a relay."""

    def write(self, data: bytes) -> None: ...


class WorkerConnection(asyncio.Protocol):
    """States: idle (no `_exchange`), waiting for the body (`_exchange` alone), relaying (`_relay` and `_sink` too)."""

    __slots__ = (
        "_body_timeout_s", "_buffer", "_exchange", "_known_around", "_known_head", "_known_text", "_paused", "_pool",
        "_relay", "_sink", "deadline", "first_body_at", "fresh", "head", "lost", "transport",
    )  # fmt: skip

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self._exchange: Exchange | None = None
        self._buffer = b""
        self._body_timeout_s = 0.0
        self._known_text = b""
        self._known_around = (b"", b"")
        self._known_head = NO_HEAD
        self._relay: Relay | None = None
        self._sink: Sink | None = None
        self.head: AnswerHead | None = None
        self.first_body_at = 0.0
        """Monotonic seconds, 0 while no body byte is here."""
        self.deadline = 0.0
        """Monotonic seconds at which the exchange fails, 0 = none; the pools' sweep looks."""
        self._paused = False
        self.fresh = True
        self.lost = False

    def ask(self, exchange: Exchange, data: Sequence[bytes], *, head_timeout_s: float, body_timeout_s: float) -> None:
        """Send a request. Raises UpstreamFailed when the connection is already gone."""
        if self.lost:
            raise UpstreamFailed("upstream_error", "the worker closed the connection at once")
        self._exchange = exchange
        self.head = None
        self._buffer = b""
        self.first_body_at = 0.0
        self._body_timeout_s = body_timeout_s
        self.deadline = monotonic() + head_timeout_s
        # Written together at the end of this turn of the loop: a long body is not copied behind its head.
        self.transport.writelines(data)

    def relay(self, relay: Relay, sink: Sink, *, client_head: bytes) -> None:
        """Pass on what is here, and the rest as it comes. Raises UpstreamFailed when it is already broken off."""
        data, self._buffer = self._buffer, b""
        out = self._feed(relay, data)
        sink.write(client_head + out)
        if not relay.complete:
            self._relay, self._sink = relay, sink
            if not self._paused:
                self.deadline = monotonic() + self._pool.idle_timeout_s

    def release(self, *, reusable: bool) -> None:
        """Back to the pool, or closed. The exchange hears nothing further."""
        self._exchange = self._relay = self._sink = None
        self.deadline = 0.0
        if reusable and self.head is not None and self.head.keep_alive and not self.lost:
            if self._paused:
                self.resume()
                self.deadline = 0.0
            self.fresh = False
            self._pool.give_back(self)
        else:
            self.transport.abort()
            self.lost = True

    @property
    def begun_with(self) -> bytes:
        """What of the body is here when the answer begins."""
        return self._buffer

    def expire(self, now: float) -> None:
        if self.deadline and now >= self.deadline:
            self._fail(UpstreamFailed("upstream_timeout", "the worker was silent for too long"))

    def give_up_waiting(self) -> None:
        """The worker is down: fail what has no answer yet, which can be asked elsewhere."""
        if self._exchange is not None and self._relay is None:
            self._fail(UpstreamFailed("upstream_timeout", "the worker does not answer"))

    def pause(self) -> None:
        """The client reads too slowly. The worker's silence is our doing then, so no deadline runs."""
        if not self.lost and not self._paused:
            self._paused = True
            self.deadline = 0.0
            self.transport.pause_reading()

    def resume(self) -> None:
        if not self.lost and self._paused:
            self._paused = False
            self.deadline = monotonic() + self._pool.idle_timeout_s
            self.transport.resume_reading()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        relay = self._relay
        if relay is not None:
            self._pass_on(relay, data)
        elif self._exchange is not None:
            self._before_body(data)
        else:
            # Between two requests a worker has nothing to say.
            self.transport.abort()

    def eof_received(self) -> None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._pool.forget(self)
        if self._relay is not None:
            self._end_of_relay(self._relay)
        elif self._exchange is not None:
            if self._ended_by_close():
                self._begin(self._exchange)
            elif self.fresh or self.head is not None or self._buffer:
                self._fail(UpstreamFailed("upstream_error", "the worker closed the connection before it answered"))
            else:
                self._fail(StaleConnection())

    # the answer's parts

    def _before_body(self, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
        head = self.head
        if head is None:
            try:
                head, data = self._take_head(data)
            except AnswerError as error:
                self._fail(UpstreamFailed("upstream_error", str(error)))
                return
            self.head = head
        self._buffer = data
        if head is None:
            return
        if data:
            self.first_body_at = monotonic()
        elif head.content_length != 0 and head.status not in (204, 304):
            self.deadline = monotonic() + self._body_timeout_s
            return
        if self._exchange is not None:
            self._begin(self._exchange)

    def _take_head(self, data: bytes) -> tuple[AnswerHead | None, bytes]:
        """(the head and what follows it) or (None, bytes of an unfinished one). Raises AnswerError."""
        while True:
            cut = data.find(b"\r\n\r\n")
            if cut < 0:
                if len(data) > ANSWER_HEAD_BYTES_MAX:
                    raise AnswerError("head too long")
                return None, data
            head = self._read_head(data[:cut])
            data = data[cut + 4 :]
            if head.status >= 200:
                return head, data

    def _read_head(self, text: bytes) -> AnswerHead:
        if text == self._known_text:
            return self._known_head
        length = length_between(text, *self._known_around)
        if length is not None:
            return self._known_head.with_length(length)
        head = parse_answer_head(text)
        self._known_text, self._known_head = text, head
        self._known_around = around_length(text) if head.content_length is not None else (b"", b"")
        return head

    def _begin(self, exchange: Exchange) -> None:
        self.deadline = 0.0
        exchange.answer_begun()

    def _ended_by_close(self) -> bool:
        """An answer without a length is ended by closing, and may be empty."""
        return self.head is not None and not self.head.chunked and self.head.content_length is None

    def _feed(self, relay: Relay, data: bytes) -> bytes:
        try:
            out = relay.feed(data) if data else b""
            if self.lost and not relay.complete:
                out += relay.end()
                if not relay.complete:
                    raise UpstreamFailed("upstream_died", "the worker closed the connection inside its answer")
            return out
        except ChunkError:
            raise UpstreamFailed("upstream_error", "the worker's chunked coding is broken") from None

    def _pass_on(self, relay: Relay, data: bytes) -> None:
        try:
            out = relay.feed(data)
        except ChunkError:
            self._fail(UpstreamFailed("upstream_died", "the worker's chunked coding is broken"))
            return
        if out and self._sink is not None:
            self._sink.write(out)
        if relay.complete:
            self._complete()
        elif not self._paused:
            self.deadline = monotonic() + self._pool.idle_timeout_s

    def _end_of_relay(self, relay: Relay) -> None:
        out = relay.end()
        if out and self._sink is not None:
            self._sink.write(out)
        if relay.complete:
            self._complete()
        else:
            self._fail(UpstreamFailed("upstream_died", "the worker closed the connection inside its answer"))

    def _complete(self) -> None:
        exchange = self._detach()
        if exchange is not None:
            exchange.answer_complete()

    def _fail(self, error: UpstreamFailed | StaleConnection) -> None:
        exchange = self._detach()
        if exchange is not None:
            exchange.answer_failed(error)

    def _detach(self) -> Exchange | None:
        exchange = self._exchange
        self._exchange = self._relay = self._sink = None
        self.deadline = 0.0
        return exchange


class WorkerPool:
    """Idle connections to one worker and how many are open in all."""

    def __init__(self, url: str, *, loop: asyncio.AbstractEventLoop, idle_max: int, idle_timeout_s: float) -> None:
        self.address = parse_worker_url(url)
        self.host_header = f"{_bracketed(self.address.host)}:{self.address.port}".encode()
        self.request_heads: dict[bytes, bytes] = {}
        """Path → the part of a request's head that is the same for each; as many as there are paths."""
        self.idle_timeout_s = idle_timeout_s
        self._loop = loop
        self._idle_max = idle_max
        self._idle: list[WorkerConnection] = []
        self._open: set[WorkerConnection] = set()
        self._resolved = self.address.host if self.address.is_literal else ""
        self._closed = False

    @property
    def busy(self) -> int:
        return len(self._open) - len(self._idle)

    def take_idle(self) -> WorkerConnection | None:
        """The most recently used one: it is the least likely to have gone stale."""
        return self._idle.pop() if self._idle else None

    async def connect(self, *, timeout_s: float) -> WorkerConnection:
        """Raises UpstreamFailed."""
        try:
            async with asyncio.timeout(timeout_s):
                host = self._resolved or await self._resolve()
                _, connection = await self._loop.create_connection(
                    lambda: WorkerConnection(self), host, self.address.port
                )
        except TimeoutError:
            raise UpstreamFailed("upstream_timeout", "the worker did not accept a connection in time") from None
        except (OSError, WorkerUrlError) as error:
            raise UpstreamFailed("upstream_error", f"no connection to the worker: {type(error).__name__}") from None
        self.add(connection)
        return connection

    def add(self, connection: WorkerConnection) -> None:
        """A connection that was opened; it counts until it is lost."""
        if not connection.lost:
            self._open.add(connection)

    async def _resolve(self) -> str:
        """One address of the name, kept as long as the worker keeps its URL: a rebound name leads nowhere new.

        IPv4 first, since `localhost` also names ::1 and vLLM listens on 0.0.0.0 by default.
        """
        found = await self._loop.getaddrinfo(self.address.host, self.address.port, type=socket.SOCK_STREAM)
        best = min(found, key=lambda entry: entry[0] != socket.AF_INET)
        address = str(best[4][0])
        check_address(address)
        self._resolved = address
        return address

    def give_back(self, connection: WorkerConnection) -> None:
        if self._closed or len(self._idle) >= self._idle_max:
            connection.transport.close()
        else:
            self._idle.append(connection)

    def forget(self, connection: WorkerConnection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def expire(self, now: float) -> None:
        for connection in list(self._open):
            connection.expire(now)

    def give_up_waiting(self) -> None:
        for connection in list(self._open):
            connection.give_up_waiting()

    def close(self) -> None:
        """No further reuse; requests under way finish on their connections."""
        self._closed = True
        for connection in self._idle:
            connection.transport.close()
        self._idle.clear()


class Upstreams:
    """Every worker's pool, by URL. Bounded by the snapshot: pools of URLs that left it are closed."""

    def __init__(self, *, loop: asyncio.AbstractEventLoop, idle_max: int, idle_timeout_s: float) -> None:
        self._loop = loop
        self._idle_max = idle_max
        self._idle_timeout_s = idle_timeout_s
        self._pools: dict[str, WorkerPool] = {}
        self._leaving: list[WorkerPool] = []

    def pool(self, url: str) -> WorkerPool:
        """Raises UpstreamFailed for a URL no router connects to."""
        pool = self._pools.get(url)
        if pool is None:
            try:
                pool = WorkerPool(url, loop=self._loop, idle_max=self._idle_max, idle_timeout_s=self._idle_timeout_s)
            except WorkerUrlError as error:
                raise UpstreamFailed("upstream_error", str(error)) from None
            self._pools[url] = pool
        return pool

    def keep_only(self, urls: set[str]) -> None:
        for url in [url for url in self._pools if url not in urls]:
            pool = self._pools.pop(url)
            pool.close()
            self._leaving.append(pool)

    def give_up_waiting(self, url: str) -> None:
        """The worker is down: its requests without an answer fail at once instead of at their deadlines."""
        pool = self._pools.get(url)
        if pool is not None:
            pool.give_up_waiting()

    def sweep(self) -> None:
        """Called a few times a second: fails what has waited too long. Cheaper than a timer for each request."""
        now = monotonic()
        for pool in [*self._pools.values(), *self._leaving]:
            pool.expire(now)
        self._leaving = [pool for pool in self._leaving if pool.busy]

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host

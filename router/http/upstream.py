"""Connections to workers: one protocol object each, kept alive in a bounded pool per worker.

A connection serves one request at a time: `ask` sends it and waits for the first body byte, `relay` passes the body
on. Nothing is sent to the client before the first body byte, so until then another worker can be asked instead.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol, cast

from router.http.answer_head import ANSWER_HEAD_BYTES_MAX, AnswerError, AnswerHead, parse_answer_head
from router.http.chunked import ChunkError
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


class Sink(Protocol):
    """The client's side of a relay."""

    def write(self, data: bytes) -> None: ...


class WorkerConnection(asyncio.Protocol):
    """Invariant: `_waiter` is the one thing waited for; it is resolved by data, by the end, or by the deadline."""

    __slots__ = (
        "_buffer", "_loop", "_paused", "_pool", "_relay", "_sink", "_waiter", "deadline", "first_body_at", "fresh",
        "head", "lost", "transport",
    )  # fmt: skip

    def __init__(self, pool: WorkerPool, loop: asyncio.AbstractEventLoop) -> None:
        self._pool = pool
        self._loop = loop
        self._waiter: asyncio.Future[None] | None = None
        self._buffer = b""
        self._relay: Relay | None = None
        self._sink: Sink | None = None
        self.head: AnswerHead | None = None
        self.first_body_at = 0.0
        self.deadline = 0.0
        """Loop time at which the wait fails; the pools' sweep looks."""
        self._paused = False
        self.fresh = True
        self.lost = False

    async def ask(self, data: bytes, *, head_timeout_s: float, body_timeout_s: float) -> AnswerHead:
        """Send a request, return when the first body byte (or an empty body's end) is here.

        Raises StaleConnection or UpstreamFailed.
        """
        if self.lost:
            raise StaleConnection
        self.head = None
        self._buffer = b""
        self.first_body_at = 0.0
        self.transport.write(data)
        self.deadline = self._loop.time() + head_timeout_s
        while not self._body_begun():
            if self.head is not None:
                self.deadline = self._loop.time() + body_timeout_s
            await self._wait()
        self.deadline = 0.0
        assert self.head is not None
        return self.head

    async def relay(self, relay: Relay, sink: Sink, *, client_head: bytes) -> None:
        """Pass the answer on until it is complete. Raises UpstreamFailed when it breaks off."""
        out = self._feed(relay, self._buffer)
        self._buffer = b""
        sink.write(client_head + out)
        if relay.complete:
            return
        self._relay, self._sink = relay, sink
        try:
            while not relay.complete:
                if not self._paused:
                    self.deadline = self._loop.time() + self._pool.idle_timeout_s
                await self._wait()
        finally:
            self._relay = self._sink = None
            self.deadline = 0.0

    def release(self, *, reusable: bool) -> None:
        """Back to the pool, or closed."""
        if reusable and self.head is not None and self.head.keep_alive and not self.lost:
            self.resume()
            self.deadline = 0.0
            self.fresh = False
            self._pool.give_back(self)
        else:
            self.transport.abort()
            self.lost = True

    def expire(self, now: float) -> None:
        if self.deadline and now >= self.deadline:
            self.deadline = 0.0
            self._fail(UpstreamFailed("upstream_timeout", "the worker was silent for too long"))

    def pause(self) -> None:
        """The client reads too slowly. The worker's silence is our doing then, so no deadline runs."""
        if not self.lost and not self._paused:
            self._paused = True
            self.deadline = 0.0
            self.transport.pause_reading()

    def resume(self) -> None:
        if not self.lost and self._paused:
            self._paused = False
            self.deadline = self._loop.time() + self._pool.idle_timeout_s
            self.transport.resume_reading()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        relay = self._relay
        if relay is not None:
            self._pass_on(relay, data)
        elif self._waiter is None and self.head is not None:
            # Between two requests a worker has nothing to say.
            self.transport.abort()
        else:
            self._before_body(data)

    def eof_received(self) -> None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._pool.forget(self)
        if self._relay is not None:
            self._end_of_relay(self._relay)
        elif self._waiter is not None and not self._ended_by_close():
            answered = self.head is not None or bool(self._buffer)
            if self.fresh or answered:
                self._fail(UpstreamFailed("upstream_error", "the worker closed the connection before it answered"))
            else:
                self._fail(StaleConnection())

    # the answer's parts

    def _before_body(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        try:
            while self.head is None:
                cut = self._buffer.find(b"\r\n\r\n")
                if cut < 0:
                    if len(self._buffer) > ANSWER_HEAD_BYTES_MAX:
                        raise AnswerError("head too long")
                    return
                head = parse_answer_head(self._buffer[:cut])
                self._buffer = self._buffer[cut + 4 :]
                if head.status >= 200:
                    self.head = head
        except AnswerError as error:
            self._fail(UpstreamFailed("upstream_error", str(error)))
            return
        if self._buffer and not self.first_body_at:
            self.first_body_at = self._loop.time()
        self._wake()

    def _body_begun(self) -> bool:
        head = self.head
        if head is None:
            return False
        return bool(self._buffer) or head.content_length == 0 or head.status in (204, 304) or self.lost

    def _ended_by_close(self) -> bool:
        """An answer without a length is ended by closing, and may be empty."""
        if self.head is None or self.head.chunked or self.head.content_length is not None:
            return False
        self._wake()
        return True

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
        if out:
            assert self._sink is not None
            self._sink.write(out)
        if relay.complete:
            self._wake()
        elif not self._paused:
            self.deadline = self._loop.time() + self._pool.idle_timeout_s

    def _end_of_relay(self, relay: Relay) -> None:
        if not relay.complete:
            out = relay.end()
            if out and self._sink is not None:
                self._sink.write(out)
        if relay.complete:
            self._wake()
        else:
            self._fail(UpstreamFailed("upstream_died", "the worker closed the connection inside its answer"))

    # waiting

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: Exception) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)


class WorkerPool:
    """Idle connections to one worker and how many are open in all."""

    def __init__(self, url: str, *, loop: asyncio.AbstractEventLoop, idle_max: int, idle_timeout_s: float) -> None:
        self.address = parse_worker_url(url)
        self.host_header = f"{_bracketed(self.address.host)}:{self.address.port}".encode()
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
                    lambda: WorkerConnection(self, self._loop), host, self.address.port
                )
        except TimeoutError:
            raise UpstreamFailed("upstream_timeout", "the worker did not accept a connection in time") from None
        except (OSError, WorkerUrlError) as error:
            raise UpstreamFailed("upstream_error", f"no connection to the worker: {type(error).__name__}") from None
        self._open.add(connection)
        return connection

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

    def sweep(self) -> None:
        """Called a few times a second: fails what has waited too long. Cheaper than a timer for each request."""
        now = self._loop.time()
        for pool in [*self._pools.values(), *self._leaving]:
            pool.expire(now)
        self._leaving = [pool for pool in self._leaving if pool.busy]

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host

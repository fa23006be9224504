"""A client's connection: bytes in, bounded; requests handed to the service one after another; bytes out.

States: reading a head → reading a body → serving → reading the next head …, and lingering before a close so that the
client can read the answer to what it was still sending.

The usual request arrives whole, with the head that its connection sent before but for the length: `_serve_whole` takes
it in one step. `_advance` takes everything else, piece by piece.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from time import monotonic
from typing import Final, Protocol, cast

from router.http.answers import error_answer
from router.http.chunked import ChunkError, ChunkReader
from router.http.errors import BadHttp, EdgeError, HeadTooLarge, Overloaded, RequestTimeout, TooLarge
from router.http.head import Head, parse_head
from router.http.known_head import around_length, length_between
from router.http.upstream import WorkerConnection

WRITE_BUFFER_HIGH_BYTES: Final = 256 * 1024
"""Above it the worker is not read from; below a quarter of it reading goes on."""
PIPELINED_BYTES_MAX: Final = 256 * 1024
"""Bytes of further requests held while one is served."""
LINGER_S: Final = 2.0
DRAIN_QUIET_S: Final = 1.0
"""While draining, connections that were silent for so long are closed; the next request of others is their last."""


class Served(Protocol):
    """The request under way on a connection."""

    def client_left(self) -> None: ...


class Handler(Protocol):
    def serve(self, head: Head, body: bytes, client: ClientConnection, *, request_id: str) -> None:
        """A whole request. Sets `client.call` while it waits, and calls `client.done` in the end."""

    def refused(self, error: EdgeError) -> None:
        """A request that did not get as far as `serve`: for the counters."""


@dataclass(frozen=True, slots=True)
class EdgeLimits:
    body_bytes_max: int
    header_bytes_max: int
    headers_max: int
    connections_max: int
    head_timeout_s: float
    body_timeout_s: float
    keepalive_s: float
    stalled_s: float


@dataclass(slots=True)
class Edge:
    """What all connections share."""

    handler: Handler
    limits: EdgeLimits
    rng: random.Random
    draining: bool = False
    connections: set[ClientConnection] = field(default_factory=set)
    _requests: int = 0
    _id_prefix: str = ""

    def __post_init__(self) -> None:
        self._id_prefix = f"req-{self.rng.getrandbits(64):016x}"

    def sweep(self) -> None:
        """Called a few times a second: closes what has waited too long."""
        now = monotonic()
        for connection in list(self.connections):
            connection.expire(now)

    def new_request_id(self) -> str:
        """Unique: random for each start of the router, then counted."""
        self._requests += 1
        return self._id_prefix + format(self._requests, "08x")

    def close_idle(self) -> None:
        for connection in list(self.connections):
            connection.close_if_idle()


class ClientConnection(asyncio.Protocol):
    __slots__ = (
        "_advancing", "_body", "_body_bytes", "_buffer", "_chunks", "_deadline", "_edge", "_head", "_head_begun",
        "_known_around", "_known_head", "_known_length", "_known_text", "_length", "_lingering", "_paused_at",
        "_reading_paused", "_serving", "_upstream", "begun", "call", "keep_alive", "lost", "transport",
    )  # fmt: skip

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._buffer = b""
        self._head: Head | None = None
        self._length = 0
        """Of the body being read, 0 when it is chunked or absent."""
        self._known_head: Head | None = None
        self._known_text = b""
        self._known_length: int | None = None
        self._known_around = (b"", b"")
        self._head_begun = False
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._chunks: ChunkReader | None = None
        self._serving = False
        self._advancing = False
        self._lingering = False
        self._reading_paused = False
        self._paused_at = 0.0
        self._deadline = 0.0
        self.call: Served | None = None
        self._upstream: WorkerConnection | None = None
        self.begun = False
        """The current answer's first byte is on its way: no other answer can be given."""
        self.keep_alive = True
        self.lost = False

    # for the service

    def write(self, data: bytes) -> None:
        self.begun = True
        if not self.lost:
            self.transport.write(data)

    def attach(self, upstream: WorkerConnection | None) -> None:
        """The worker's connection that pauses while this client reads too slowly."""
        self._upstream = upstream
        if upstream is not None and self._paused_at:
            upstream.pause()

    def answer_error(self, error: EdgeError, request_id: str, *, speech: str = "openai") -> None:
        if error.closes:
            self.keep_alive = False
        self.write(error_answer(error, request_id=request_id, keep_alive=self.keep_alive, speech=speech))

    def done(self) -> None:
        """The service has finished the current request."""
        self._serving = False
        self.call = None
        if not self.begun or not self.keep_alive:
            self._linger()
        elif self._advancing:
            return
        elif self._buffer:
            self._resume_reading()
            self._advance()
        else:
            self._head_begun = False
            # An answer that promised to keep the connection may have its next request under way already.
            quiet_s = DRAIN_QUIET_S if self._edge.draining else self._edge.limits.keepalive_s
            self._deadline = monotonic() + quiet_s

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH_BYTES)
        edge = self._edge
        self._deadline = monotonic() + edge.limits.head_timeout_s
        if len(edge.connections) >= edge.limits.connections_max:
            self._refuse(Overloaded("Too many connections."))
        edge.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._lingering:
            return
        if self._serving:
            self._hold(data)
        elif self._buffer or self._head is not None or not self._serve_whole(data):
            self._buffer += data
            self._advance()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._edge.connections.discard(self)
        if self.call is not None:
            self.call.client_left()

    def pause_writing(self) -> None:
        self._paused_at = monotonic()
        if self._upstream is not None:
            self._upstream.pause()

    def resume_writing(self) -> None:
        self._paused_at = 0.0
        if self._upstream is not None:
            self._upstream.resume()

    # reading

    def _serve_whole(self, data: bytes) -> bool:
        """Serve `data` when it is one whole request under the remembered head; False leaves it to `_advance`."""
        head = self._known_head
        cut = data.find(b"\r\n\r\n")
        if head is None or cut < 0:
            return False
        text = data[:cut]
        length = self._known_length if text == self._known_text else length_between(text, *self._known_around)
        if length is None or length != len(data) - cut - 4:
            return False
        limits = self._edge.limits
        if length > limits.body_bytes_max or cut > limits.header_bytes_max:
            return False
        self._start(head, data[cut + 4 :])
        return True

    def _hold(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) > PIPELINED_BYTES_MAX and not self._reading_paused:
            self._reading_paused = True
            self.transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._reading_paused and not self.lost:
            self._reading_paused = False
            self.transport.resume_reading()

    def _advance(self) -> None:
        """Serve every whole request in the buffer, in order, until one has to wait."""
        self._advancing = True
        try:
            while not (self._serving or self._lingering or self.lost):
                if self._head is None and not self._take_head():
                    break
                if self._head is None or not self._take_body():
                    break
                head, body = self._head, self._body
                self._head, self._body, self._chunks = None, [], None
                self._start(head, body[0] if len(body) == 1 else b"".join(body))
            if not self._serving:
                self._resume_reading()
        except EdgeError as error:
            self._refuse(error)
        finally:
            self._advancing = False

    def _take_head(self) -> bool:
        limits = self._edge.limits
        data = self._buffer
        if data[:2] == b"\r\n":
            data = self._buffer = data.lstrip(b"\r\n")
        cut = data.find(b"\r\n\r\n")
        if cut < 0:
            self._await_head(data)
            return False
        if cut > limits.header_bytes_max:
            raise HeadTooLarge(f"The headers are longer than {limits.header_bytes_max} bytes.")
        head = self._read_head(data[:cut])
        self._buffer = data[cut + 4 :]
        self._head = head
        self.keep_alive = head.keep_alive and not self._edge.draining
        self._expect_body(head)
        return True

    def _read_head(self, text: bytes) -> Head:
        known, length = self._known_head, self._known_length
        if known is not None:
            if text != self._known_text:
                length = length_between(text, *self._known_around)
            if text == self._known_text or length is not None:
                self._length = length or 0
                return known
        head = parse_head(text, headers_max=self._edge.limits.headers_max)
        self._length = head.content_length or 0
        self._known_text, self._known_head, self._known_length = text, head, head.content_length
        self._known_around = around_length(text) if head.content_length is not None else (b"", b"")
        return head

    def _await_head(self, data: bytes) -> None:
        limits = self._edge.limits
        if len(data) > limits.header_bytes_max:
            raise HeadTooLarge(f"The headers are longer than {limits.header_bytes_max} bytes.")
        if b"\n\n" in data or b"\n\r\n" in data:
            raise BadHttp("A line of the request's head does not end in CR LF.")
        if not data:
            self._head_begun = False
            self._deadline = monotonic() + limits.keepalive_s
        elif not self._head_begun:
            self._head_begun = True
            self._deadline = monotonic() + limits.head_timeout_s

    def _expect_body(self, head: Head) -> None:
        limits = self._edge.limits
        length = self._length
        if length > limits.body_bytes_max:
            raise TooLarge(f"The body is longer than {limits.body_bytes_max} bytes.")
        self._chunks = ChunkReader() if head.chunked else None
        self._body_bytes = 0
        if len(self._buffer) < length or head.chunked:
            self._deadline = monotonic() + limits.body_timeout_s
            if head.expects_continue and not self._buffer:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _take_body(self) -> bool:
        if self._chunks is not None:
            return self._take_chunks(self._chunks)
        data, self._buffer = self._buffer, b""
        need = self._length - self._body_bytes
        if len(data) > need:
            self._buffer = data[need:]
            data = data[:need]
        if data:
            self._body.append(data)
            self._body_bytes += len(data)
        return len(data) == need

    def _take_chunks(self, chunks: ChunkReader) -> bool:
        data, self._buffer = self._buffer, b""
        try:
            pieces = chunks.feed(data)
        except ChunkError as error:
            raise BadHttp(f"The chunked body is malformed: {error}.") from None
        self._body += pieces
        self._body_bytes += sum(map(len, pieces))
        if self._body_bytes > self._edge.limits.body_bytes_max:
            raise TooLarge(f"The body is longer than {self._edge.limits.body_bytes_max} bytes.")
        self._buffer = chunks.rest
        return chunks.done

    def _start(self, head: Head, body: bytes) -> None:
        self._deadline = 0.0
        self._serving = True
        self.begun = False
        self.keep_alive = head.keep_alive and not self._edge.draining
        self._edge.handler.serve(head, body, self, request_id=self._edge.new_request_id())

    # closing

    def expire(self, now: float) -> None:
        if self._paused_at and now - self._paused_at > self._edge.limits.stalled_s:
            self.transport.abort()
        elif self._deadline and now >= self._deadline:
            if self._lingering or (self._head is None and not self._buffer):
                self.transport.close()
            else:
                self._refuse(RequestTimeout("The request did not arrive in time."))

    def close_if_idle(self) -> None:
        if not self._serving and self._head is None and not self._buffer:
            self.transport.close()

    def cancel(self) -> None:
        """End the current request at once (the drain's end)."""
        self.transport.abort()

    def _refuse(self, error: EdgeError) -> None:
        self._edge.handler.refused(error)
        self.keep_alive = False
        self.answer_error(error, self._edge.new_request_id())
        self._linger()

    def _linger(self) -> None:
        """Close once the client has had a moment to read: closing on unread input would reset the connection."""
        self._lingering = True
        self._buffer = b""
        self._body = []
        if self.lost:
            return
        self._resume_reading()
        self._deadline = monotonic() + LINGER_S
        if self.transport.can_write_eof():
            self.transport.write_eof()

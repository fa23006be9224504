"""What becomes of a worker's answer on its way to the client: pure, fed with bytes, gives bytes.

A relay is told the raw bytes from the worker and says which to send on; it knows when the answer is complete and
what its usage was. Sockets, clocks and timeouts are the caller's. Response bytes are looked at once, with searches
in C; only the rare block that may hold the usage event, or that does not end on an event, is taken apart.
"""

from __future__ import annotations

from typing import Final, Protocol

from router.http.chunked import LAST_CHUNK, ChunkError, ChunkReader, chunk, chunk_size
from router.http.usage import TAIL_BYTES, UNKNOWN, Usage, read_usage
from router.http.usage_event import is_usage_event

EVENT_BYTES_MAX: Final = 1024 * 1024
"""An unfinished event longer than this is passed on unread (a 1 GiB line must not be collected)."""


class Relay(Protocol):
    complete: bool
    reusable: bool
    """Whether the worker's connection can take another request once the answer is complete."""
    failed: str
    """Why a complete answer is not a good one, or ""."""
    truncated: bool
    """The stream ended in good framing without its end mark: the client has not been told yet."""
    usage: Usage

    def feed(self, data: bytes) -> bytes:
        """Bytes to send on. Raises ChunkError when the framing is broken."""

    def end(self) -> bytes:
        """The worker closed the connection: bytes to send on, `complete` when that was a proper end."""


class LengthRelay:
    """Content-Length: counted and passed on untouched."""

    __slots__ = ("_need", "_tail", "complete", "failed", "reusable", "truncated", "usage")

    def __init__(self, length: int) -> None:
        self._need = length
        self._tail = b""
        self.complete = length == 0
        self.reusable = True
        self.failed = ""
        self.truncated = False
        self.usage = UNKNOWN

    def feed(self, data: bytes) -> bytes:
        if len(data) > self._need:
            # Bytes behind the announced end belong to no request: the connection is not used again.
            data = data[: self._need]
            self.reusable = False
        self._need -= len(data)
        tail = self._tail + data if len(data) < TAIL_BYTES else data
        if self._need == 0:
            self.complete = True
            self.usage = read_usage(tail[-TAIL_BYTES:])
        else:
            self._tail = tail[-TAIL_BYTES:]
        return data

    def end(self) -> bytes:
        return b""


class ChunkedRelay:
    """Chunked or close-delimited, and not a stream of events: chunked afresh for the client."""

    __slots__ = ("_reader", "_tail", "complete", "failed", "reusable", "truncated", "usage")

    def __init__(self, *, chunked: bool) -> None:
        self._reader = ChunkReader() if chunked else None
        self._tail = b""
        self.complete = False
        self.reusable = chunked
        self.failed = ""
        self.truncated = False
        self.usage = UNKNOWN

    def feed(self, data: bytes) -> bytes:
        payload = data if self._reader is None else b"".join(self._reader.feed(data))
        self._tail = (self._tail + payload)[-TAIL_BYTES:]
        out = chunk(payload) if payload else b""
        return out + self._finish() if self._reader is not None and self._reader.done else out

    def end(self) -> bytes:
        return self._finish() if self._reader is None else b""

    def _finish(self) -> bytes:
        self.complete = True
        if self._reader is not None and self._reader.rest:
            self.reusable = False
        self.usage = read_usage(self._tail)
        return LAST_CHUNK


class StreamRelay:
    """Server-sent events. Whole events are passed on; the usage event is read, and kept back unless it was asked for.

    The usual block from a worker is one or more whole chunks that end on an event's end: it is passed on as it is.
    """

    __slots__ = (
        "_done_seen", "_eof_framed", "_open", "_reader", "_strip", "complete", "failed", "reusable", "truncated",
        "usage",
    )  # fmt: skip

    def __init__(self, *, chunked: bool, strip_usage: bool) -> None:
        self._reader = ChunkReader()
        self._eof_framed = not chunked
        self._strip = strip_usage
        self._open = b""
        """Bytes of an event whose end has not arrived."""
        self._done_seen = False
        self.complete = False
        self.reusable = chunked
        self.failed = ""
        self.truncated = False
        self.usage = UNKNOWN

    def feed(self, data: bytes) -> bytes:
        if not self._open and not self._eof_framed and self._reader.between_chunks and _is_plain(data):
            if b"data: [DONE]" in data:
                self._note_done(data)
            if b'"error"' in data:
                self._note_error(data)
            return data
        payload = data if self._eof_framed else b"".join(self._reader.feed(data))
        out = self._events(payload)
        return out + self._finish() if self._reader.done else out

    @property
    def ended(self) -> bool:
        """The end mark is here; of the stream only its framing may be missing."""
        return self._done_seen

    def end(self) -> bytes:
        if not self._eof_framed or not self._done_seen:
            return b""
        return self._finish()

    def _events(self, payload: bytes) -> bytes:
        """Chunk of the whole events in hand; the rest waits for its end."""
        data = self._open + payload
        cut = _events_end(data)
        if cut == 0:
            if len(data) <= EVENT_BYTES_MAX:
                self._open = data
                return b""
            cut = len(data)
        whole, self._open = data[:cut], data[cut:]
        if b"[]" in whole and b'"usage"' in whole:
            whole = b"".join(event for event in _split(whole) if not self._is_kept_back(event))
        if b"data: [DONE]" in whole:
            self._note_done(whole)
        if b'"error"' in whole:
            self._note_error(whole)
        return chunk(whole) if whole else b""

    def _is_kept_back(self, event: bytes) -> bool:
        if not event.startswith(b"data:") or not is_usage_event(event[5:]):
            return False
        self.usage = read_usage(event)
        return self._strip

    def _note_done(self, data: bytes) -> None:
        # A raw line break cannot stand inside a JSON string: this is the mark, not a model talking about it.
        if b"\ndata: [DONE]" in data or data.startswith(b"data: [DONE]"):
            self._done_seen = True

    def _note_error(self, data: bytes) -> None:
        if b'\ndata: {"error"' in data or data.startswith(b'data: {"error"'):
            self.failed = "upstream_died"

    def _finish(self) -> bytes:
        """The last chunk, or b"" with `failed` set when the stream lacks its end mark."""
        rest, self._open = self._open, b""
        if rest.rstrip(b"\r\n") == b"data: [DONE]":
            self._done_seen = True
        self.complete = True
        if self._reader.rest:
            self.reusable = False
        if not self._done_seen:
            self.failed = "upstream_died"
            self.truncated = True
            return b""
        return (chunk(rest) if rest else b"") + LAST_CHUNK


def _is_plain(data: bytes) -> bool:
    """Whole chunks, none of them the last, whose payload ends on an event's end and holds no usage event."""
    if not data.endswith(b"\n\n\r\n") or (b"[]" in data and b'"usage"' in data):
        return False
    at, end = 0, len(data)
    while at < end:
        cut = data.find(b"\r\n", at, at + 20)
        if cut < 0:
            return False
        try:
            size = chunk_size(data[at:cut])
        except ChunkError:
            return False
        at = cut + 4 + size
        if size == 0 or data[at - 2 : at] != b"\r\n":
            return False
    return at == end


def _events_end(data: bytes) -> int:
    """Length of the whole events at the front of `data`; 0 when none is whole."""
    at, crlf_at = data.rfind(b"\n\n"), data.rfind(b"\r\n\r\n")
    return max(at + 2 if at >= 0 else 0, crlf_at + 4 if crlf_at >= 0 else 0)


def _split(data: bytes) -> list[bytes]:
    """Events with their closing empty line."""
    return [part + b"\n\n" for part in data.split(b"\n\n")[:-1]]

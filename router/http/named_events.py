"""Streams of named events (`/v1/messages`, `/v1/responses`) on their way to the client; a `relay.Relay`.

They differ from OpenAI's chat streams in three ways: the end mark is an event of its own and no `[DONE]`, usage comes
inside events that the client sees anyway, and an error is an event too. Event names stand on lines of their own, which
no JSON string can contain, so searching for them finds nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from router.http.chunked import LAST_CHUNK, ChunkReader, chunk
from router.http.relay import EVENT_BYTES_MAX
from router.http.usage import UNKNOWN, Usage, read_usage


@dataclass(frozen=True, slots=True)
class Speech:
    """The events of one protocol that mean something to a relay."""

    ends: frozenset[bytes]
    usage: frozenset[bytes]
    """Events with a usage block; the last one that was read counts."""
    fails: frozenset[bytes]
    opens: frozenset[bytes]
    """Events that a worker sends before it has computed anything."""
    marks: tuple[bytes, ...]
    """Beginnings of all of these names: a block without them is passed on as it is."""


ANTHROPIC: Final = Speech(
    ends=frozenset((b"message_stop",)),
    usage=frozenset((b"message_start", b"message_delta")),
    fails=frozenset((b"error",)),
    opens=frozenset((b"ping",)),
    marks=(b"event: message_", b"event: error", b"event: ping"),
)
RESPONSES: Final = Speech(
    ends=frozenset((b"response.completed", b"response.incomplete", b"response.failed")),
    usage=frozenset((b"response.completed", b"response.incomplete")),
    fails=frozenset((b"error", b"response.failed")),
    opens=frozenset((b"response.created", b"response.in_progress", b"response.queued")),
    marks=(
        b"event: response.c", b"event: response.in", b"event: response.failed", b"event: response.q", b"event: error",
    ),
)  # fmt: skip


class NamedEventRelay:
    __slots__ = (
        "_eof_framed", "_on_output", "_open", "_reader", "_speech", "complete", "ended", "events", "failed", "reusable",
        "truncated", "usage",
    )  # fmt: skip

    def __init__(self, speech: Speech, *, chunked: bool, on_output: Callable[[], None] | None = None) -> None:
        """`on_output` is called once, at the first event that says the worker has begun to answer."""
        self._speech = speech
        self._reader = ChunkReader()
        self._eof_framed = not chunked
        self._on_output = on_output
        self._open = b""
        """Bytes of an event whose end has not arrived."""
        self.ended = False
        """The end mark, or an error in its place, was seen."""
        self.events = 0
        """Events passed on: the number of the next one, where a protocol numbers them."""
        self.complete = False
        self.reusable = chunked
        self.failed = ""
        self.truncated = False
        self.usage: Usage = UNKNOWN

    def feed(self, data: bytes) -> bytes:
        """Bytes to send on. Raises ChunkError when the framing is broken."""
        payload = data if self._eof_framed else b"".join(self._reader.feed(data))
        out = self._pass_on(payload) if payload else b""
        return out + self._finish() if self._reader.done else out

    def end(self) -> bytes:
        """The worker closed the connection: a proper end only behind the end mark, where no length was given."""
        return self._finish() if self._eof_framed and self.ended else b""

    def _pass_on(self, payload: bytes) -> bytes:
        """Chunk of the whole events in hand; the rest waits for its end."""
        data = self._open + payload if self._open else payload
        cut = data.rfind(b"\n\n") + 2
        if cut == 1:
            if len(data) <= EVENT_BYTES_MAX:
                self._open = data
                return b""
            cut = len(data)
        whole, self._open = data[:cut], data[cut:]
        self._count(whole)
        if self._on_output is not None or any(mark in whole for mark in self._speech.marks):
            for event in whole.split(b"\n\n"):
                self._note(event)
        return chunk(whole)

    def _count(self, whole: bytes) -> None:
        self.events += whole.count(b"\nevent: ") + whole.startswith(b"event: ")

    def _note(self, event: bytes) -> None:
        name = _name(event)
        if not name:
            return
        speech = self._speech
        if name in speech.usage:
            self._read_usage(event)
        if name in speech.fails:
            self.failed = "upstream_died"
            self.ended = True
        elif name in speech.ends:
            self.ended = True
        elif self._on_output is not None and name not in speech.opens:
            on_output, self._on_output = self._on_output, None
            on_output()

    def _read_usage(self, event: bytes) -> None:
        usage = read_usage(event)
        if usage.prompt_tokens is not None:
            self.usage = usage

    def _finish(self) -> bytes:
        """The last chunk, or b"" with `failed` set when the stream lacks its end mark."""
        rest, self._open = self._open, b""
        if rest:
            self._note(rest.rstrip(b"\r\n"))
        self.complete = True
        if self._reader.rest:
            self.reusable = False
        if not self.ended:
            self.failed = "upstream_died"
            self.truncated = True
            return b""
        return (chunk(rest) if rest else b"") + LAST_CHUNK


def _name(event: bytes) -> bytes:
    """Of an event whose first field it is, as both protocols write it; b"" for none."""
    if not event.startswith(b"event: "):
        return b""
    return event[7:].partition(b"\n")[0].strip()

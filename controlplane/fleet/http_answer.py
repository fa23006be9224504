"""Takes an HTTP/1.1 answer apart as its bytes arrive: status and body, every part of it bounded. Pure.

Only what a worker's page needs: no redirects, no content coding (none is asked for), no second answer on a connection.
"""

from __future__ import annotations

import re

HEAD_BYTES_MAX = 64 * 1024
CHUNK_LINE_BYTES_MAX = 1024
"""Size and extensions of one chunk."""

_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5]\d\d)(?: |$)")
_LENGTH = re.compile(rb"\d{1,15}$")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;|$)")


class NotHttp(ValueError):
    """The bytes are no answer, or it ended before it was complete."""


class TooLarge(ValueError):
    """The body is larger than asked for."""


class Answer:
    """Feed it bytes until `complete`. Only a 200 has a body: of any other status the head is all that is read."""

    def __init__(self, *, bytes_max: int) -> None:
        self.status = 0
        self.body = bytearray()
        self.complete = False
        self._bytes_max = bytes_max
        self._buffer = bytearray()
        self._left: int | None = None
        """Bytes of the body, or of the chunk, that are still to come; None = until the connection ends."""
        self._chunked = False
        self._break_due = False
        """A chunk's bytes are taken, the line break behind them is not."""

    def feed(self, data: bytes) -> None:
        """Raises NotHttp and TooLarge. What follows a complete answer is left out."""
        if self.complete:
            return
        self._buffer += data
        if not self.status and not self._take_head():
            return
        if self.status != 200:
            self.complete = True
        elif self._chunked:
            self._take_chunks()
        else:
            self._take_plain()

    def end(self) -> None:
        """The connection ended. Raises NotHttp where more was to come."""
        if self.complete:
            return
        if self.status != 200 or self._chunked or self._left is not None:
            raise NotHttp("The connection ended before the answer did.")
        self.complete = True

    def _take_head(self) -> bool:
        """Whether the head of the final answer has arrived; interim ones (1xx) are passed over."""
        while True:
            at = self._buffer.find(b"\r\n\r\n")
            if at > HEAD_BYTES_MAX or (at < 0 and len(self._buffer) > HEAD_BYTES_MAX):
                raise NotHttp("The answer's head is too large.")
            if at < 0:
                return False
            first, *lines = bytes(self._buffer[:at]).split(b"\r\n")
            del self._buffer[: at + 4]
            status = _status_of(first)
            if status >= 200:
                self.status = status
                if status == 200:
                    self._read_framing(lines)
                return True

    def _read_framing(self, lines: list[bytes]) -> None:
        lengths = set()
        for line in lines:
            name, colon, value = line.partition(b":")
            if not colon:
                raise NotHttp("A header has no colon.")
            name = name.lower()
            if name == b"content-length":
                lengths.add(value.strip())
            elif name == b"transfer-encoding":
                if value.strip().lower() != b"chunked":
                    raise NotHttp("The answer has an unknown transfer coding.")
                self._chunked = True
        if self._chunked:
            self._left = 0
        elif lengths:
            self._left = _length_of(lengths)
            self._check_room(self._left)

    def _take_plain(self) -> None:
        wanted = len(self._buffer) if self._left is None else min(self._left, len(self._buffer))
        self._take(wanted)
        if self._left is not None:
            self._left -= wanted
            self.complete = self._left == 0

    def _take_chunks(self) -> None:
        while self._left or self._begin_chunk():
            assert self._left is not None
            wanted = min(self._left, len(self._buffer))
            if not wanted:
                return
            self._take(wanted)
            self._left -= wanted
            self._break_due = not self._left

    def _begin_chunk(self) -> bool:
        """Whether the size of another chunk was read; not where more must arrive or the last one was there."""
        if self._break_due:
            if len(self._buffer) < 2:
                return False
            if self._buffer[:2] != b"\r\n":
                raise NotHttp("A chunk is longer than it says.")
            del self._buffer[:2]
            self._break_due = False
        at = self._buffer.find(b"\r\n")
        if at > CHUNK_LINE_BYTES_MAX or (at < 0 and len(self._buffer) > CHUNK_LINE_BYTES_MAX):
            raise NotHttp("A chunk's size is too long.")
        if at < 0:
            return False
        match = _CHUNK_SIZE.match(bytes(self._buffer[:at]))
        if match is None:
            raise NotHttp("A chunk has no size.")
        del self._buffer[: at + 2]
        self._left = int(match[1], 16)
        # The last chunk ends the page; trailers say nothing that is wanted, and the connection is closed.
        self.complete = self._left == 0
        self._check_room(self._left)
        return not self.complete

    def _take(self, count: int) -> None:
        self._check_room(count)
        self.body += self._buffer[:count]
        del self._buffer[:count]

    def _check_room(self, more: int) -> None:
        if len(self.body) + more > self._bytes_max:
            raise TooLarge(f"The answer is larger than {self._bytes_max // 1024} KiB.")


def _status_of(line: bytes) -> int:
    match = _STATUS.match(line)
    if match is None:
        raise NotHttp("The answer is not HTTP.")
    return int(match[1])


def _length_of(lengths: set[bytes]) -> int:
    text = lengths.pop()
    if lengths or not _LENGTH.match(text):
        raise NotHttp("The answer's length is not one number.")
    return int(text)

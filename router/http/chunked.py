"""Chunked transfer coding: a pure incremental reader for both directions, and the writer of one chunk."""

from __future__ import annotations

from typing import Final

LINE_BYTES_MAX: Final = 256
"""A chunk-size line with its extensions. Longer ones serve no purpose but mischief."""
TRAILER_BYTES_MAX: Final = 8 * 1024

_SIZE: Final = 0
_DATA: Final = 1
_CRLF: Final = 2
_TRAILER: Final = 3
"""What the reader expects next."""


class ChunkError(ValueError):
    """The coding is broken; nothing after it can be trusted."""


class ChunkReader:
    """Feed raw bytes, get payload; `done` after the last chunk, `rest` holds what came behind it."""

    __slots__ = ("_line", "_need", "_state", "done", "rest")

    def __init__(self) -> None:
        self._state = _SIZE
        self._need = 0
        self._line = b""
        self.done = False
        self.rest = b""

    @property
    def between_chunks(self) -> bool:
        return self._state == _SIZE and not self._line

    def feed(self, data: bytes) -> list[bytes]:
        """Payload pieces of `data`, in order. Raises ChunkError."""
        pieces: list[bytes] = []
        at, end = 0, len(data)
        while at < end and not self.done:
            if self._state == _DATA:
                piece = data[at : at + self._need]
                pieces.append(piece)
                at += len(piece)
                self._need -= len(piece)
                if self._need == 0:
                    self._state = _CRLF
            else:
                at = self._read_line(data, at)
        if self.done:
            self.rest = data[at:]
        return pieces

    def _read_line(self, data: bytes, at: int) -> int:
        cut = data.find(b"\n", at)
        self._line += data[at:] if cut < 0 else data[at : cut + 1]
        if len(self._line) > (TRAILER_BYTES_MAX if self._state == _TRAILER else LINE_BYTES_MAX):
            raise ChunkError("chunk line too long")
        if cut < 0:
            return len(data)
        line, self._line = self._line, b""
        if not line.endswith(b"\r\n"):
            raise ChunkError("chunk line does not end in CR LF")
        self._take_line(line[:-2])
        return cut + 1

    def _take_line(self, line: bytes) -> None:
        if self._state == _SIZE:
            self._need = chunk_size(line)
            self._state = _DATA if self._need else _TRAILER
        elif self._state == _CRLF:
            if line:
                raise ChunkError("chunk longer than its size")
            self._state = _SIZE
        elif not line:
            self.done = True


_HEX: Final = b"0123456789abcdefABCDEF"


def chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].rstrip(b" \t")
    if not digits or len(digits) > 15 or digits.translate(None, _HEX):
        raise ChunkError("chunk size is not hexadecimal")
    return int(digits, 16)


def chunk(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


LAST_CHUNK: Final = b"0\r\n\r\n"

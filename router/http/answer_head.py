"""The head of a worker's answer: only what the relay needs; no header of a worker reaches a client by itself (S6)."""

from __future__ import annotations

from typing import Final, NamedTuple

ANSWER_HEAD_BYTES_MAX: Final = 64 * 1024


class AnswerError(ValueError):
    """The worker does not speak HTTP as it should."""


class AnswerHead(NamedTuple):
    status: int
    content_type: bytes
    content_length: int | None
    chunked: bool
    keep_alive: bool
    retry_after: bytes | None

    def with_length(self, length: int | None) -> AnswerHead:
        """The same head over another body."""
        return AnswerHead(self.status, self.content_type, length, self.chunked, self.keep_alive, self.retry_after)


NO_HEAD: Final = AnswerHead(0, b"", None, False, False, None)
"""Stands where no head has been read."""


def parse_answer_head(data: bytes) -> AnswerHead:
    """`data` without the closing empty line. Raises AnswerError."""
    if not data.startswith(b"HTTP/1.") or not data[9:12].isdigit():
        raise AnswerError("no HTTP status line")
    length: int | None = None
    chunked = False
    keep_alive = data.startswith(b"HTTP/1.1")
    content_type, retry_after = b"", None
    for line in data.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        name, value = name.lower(), value.strip()
        if name == b"content-length":
            length = _length(value, length)
        elif name == b"transfer-encoding":
            chunked = _chunked(value)
        elif name == b"content-type":
            content_type = value.lower()
        elif name == b"connection":
            keep_alive = keep_alive and value.lower() != b"close"
        elif name == b"retry-after" and value.isdigit() and len(value) <= 6:
            retry_after = value
    return AnswerHead(int(data[9:12]), content_type, None if chunked else length, chunked, keep_alive, retry_after)


def _length(value: bytes, seen: int | None) -> int:
    if not value.isdigit() or len(value) > 15 or (seen is not None and seen != int(value)):
        raise AnswerError("odd Content-Length")
    return int(value)


def _chunked(value: bytes) -> bool:
    if value.lower() != b"chunked":
        raise AnswerError("unknown Transfer-Encoding")
    return True

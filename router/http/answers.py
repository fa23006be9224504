"""Answers of our own, and the head put in front of a worker's answer: framed by us, with our request id."""

from __future__ import annotations

from typing import Final

from router.http.answer_head import AnswerHead
from router.http.error_shapes import body_for
from router.http.errors import EdgeError, status_line

JSON: Final = b"application/json"


def full_answer(
    status: int, body: bytes, *, request_id: str, keep_alive: bool, content_type: bytes = JSON, extra: bytes = b""
) -> bytes:
    """`extra` holds whole header lines with their line ends."""
    return b"%bcontent-type: %b\r\nx-request-id: %b\r\n%b%bcontent-length: %d\r\n\r\n%b" % (
        status_line(status), content_type, request_id.encode(), extra, _connection(keep_alive), len(body), body,
    )  # fmt: skip


def error_answer(error: EdgeError, *, request_id: str, keep_alive: bool, speech: str = "openai") -> bytes:
    """`speech` is the endpoint's protocol, which has its own words for an error."""
    extra = b""
    if error.retry_after_s is not None:
        extra += b"retry-after: %d\r\n" % error.retry_after_s
    if error.allow is not None:
        extra += b"allow: %b\r\n" % error.allow.encode()
    return full_answer(
        error.status,
        body_for(speech, error),
        request_id=request_id,
        keep_alive=keep_alive and not error.closes,
        extra=extra,
    )


def relayed_head(head: AnswerHead, *, request_id: str, keep_alive: bool, stream: bool, extra: bytes = b"") -> bytes:
    """Of a worker's headers the client sees the content type and Retry-After (S6). `extra` as in `full_answer`."""
    framing = (
        b"content-length: %d\r\n" % head.content_length
        if head.content_length is not None and not stream
        else b"transfer-encoding: chunked\r\n"
    )
    if stream:
        extra += b"cache-control: no-cache\r\n"
    if head.retry_after is not None:
        extra += b"retry-after: %b\r\n" % head.retry_after
    return b"%bcontent-type: %b\r\nx-request-id: %b\r\n%b%b%b\r\n" % (
        status_line(head.status), head.content_type, request_id.encode(), extra, _connection(keep_alive), framing,
    )  # fmt: skip


def _connection(keep_alive: bool) -> bytes:
    return b"" if keep_alive else b"connection: close\r\n"

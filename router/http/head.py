"""The head of a client's request, read strictly (S18): what is not plainly well-formed is refused, never repaired.

A lenient reader in front of another reader is how requests are smuggled; so this one knows one grammar, and what
goes upstream is framed afresh by us.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from router.http.errors import BadHttp, HeadTooLarge, HttpVersion, MethodNotAllowed, NotFound, UnsupportedMedia

_TOKEN: Final = b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_CONTROLS: Final = bytes([*range(0x00, 0x09), *range(0x0B, 0x0D), *range(0x0E, 0x20), 0x7F])
"""All control characters but tab; CR and LF are counted on their own."""
_HOST: Final = re.compile(rb"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
_LENGTH_DIGITS_MAX: Final = 15
_METHODS_NEVER: Final = (b"CONNECT", b"TRACE")

PATHS: dict[bytes, bytes] = {
    b"/v1/chat/completions": b"POST",
    b"/v1/completions": b"POST",
    b"/v1/messages": b"POST",
    b"/v1/responses": b"POST",
    b"/v1/embeddings": b"POST",
    b"/v1/models": b"GET",
}
"""The whole surface (S4). The comparison is byte for byte: no decoding, no normalising, so no second spelling."""


KNOWN_LINES_MAX: Final = 4096
KNOWN_LINE_BYTES_MAX: Final = 256
"""Bounds of the memory of lines already found well-formed: a client repeats nearly all of its lines. Keys stay out."""


@dataclass(slots=True)
class Head:
    """What the router uses of a request's head; everything else is dropped here."""

    path: bytes
    content_length: int | None
    chunked: bool
    expects_continue: bool
    keep_alive: bool
    api_key: str | None
    """Of `Authorization: Bearer …`, or `x-api-key: …` as Anthropic's clients send it."""
    session: bytes | None
    template: bytes | None
    traceparent: bytes | None


def parse_head(data: bytes, *, headers_max: int) -> Head:
    """`data` is the head without its closing empty line. Raises an EdgeError of the matching status."""
    lines = data.split(b"\r\n")
    breaks = len(lines) - 1
    if data.count(b"\n") != breaks or data.count(b"\r") != breaks:
        raise BadHttp("A line of the request's head does not end in CR LF.")
    if breaks > headers_max:
        raise HeadTooLarge(f"More than {headers_max} headers.")
    path = _known_requests.get(lines[0]) or _request_line(lines[0])
    return _head(path, _headers(lines))


_known_requests: dict[bytes, bytes] = {}
"""Request lines → path; only plain ones without a query are kept, so it has no more entries than PATHS."""
_known_lines: dict[bytes, tuple[bytes, bytes]] = {}
"""Header lines → (lower-case name, value)."""


def _request_line(line: bytes) -> bytes:
    if len(line.translate(None, _CONTROLS)) != len(line):
        raise BadHttp("The request's head contains a control character.")
    parts = line.split(b" ")
    if len(parts) != 3 or not parts[0] or parts[0].translate(None, _TOKEN):
        raise BadHttp("The request line is malformed.")
    method, target, version = parts
    if version != b"HTTP/1.1":
        raise HttpVersion("Only HTTP/1.1 is spoken here.")
    if method in _METHODS_NEVER:
        raise MethodNotAllowed("This method is not supported.", allow="GET, POST")
    path = target.partition(b"?")[0]
    allowed = PATHS.get(path)
    if allowed is None:
        raise NotFound("Unknown request URL. One of: " + ", ".join(sorted(each.decode() for each in PATHS)))
    if method != allowed:
        raise MethodNotAllowed(f"This URL answers {allowed.decode()} only.", allow=allowed.decode())
    if path == target:
        _known_requests[line] = path
    return path


def _headers(lines: list[bytes]) -> dict[bytes, bytes]:
    headers: dict[bytes, bytes] = {}
    known = _known_lines
    for i in range(1, len(lines)):
        line = lines[i]
        name, value = known.get(line) or _header_line(line)
        if name in headers and name in _SINGLE:
            raise BadHttp(f"The header {name.decode()} is given twice.")
        headers[name] = value
    return headers


def _header_line(line: bytes) -> tuple[bytes, bytes]:
    if len(line.translate(None, _CONTROLS)) != len(line):
        raise BadHttp("The request's head contains a control character.")
    name, colon, value = line.partition(b":")
    # Folded lines and a space before the colon fail here too: neither is a token.
    if not colon or not name or name.translate(None, _TOKEN):
        raise BadHttp("A header line is malformed.")
    pair = name.lower(), value.strip(b" \t")
    check = _VALUE_CHECKS.get(pair[0])
    if check is not None:
        check(pair[1])
    if len(line) <= KNOWN_LINE_BYTES_MAX and pair[0] not in _SECRET:
        if len(_known_lines) >= KNOWN_LINES_MAX:
            _known_lines.clear()
        _known_lines[line] = pair
    return pair


_SECRET: Final = frozenset((b"authorization", b"x-api-key"))
_SINGLE: Final = _SECRET | {b"host", b"content-length", b"transfer-encoding", b"content-type"}


def _head(path: bytes, headers: dict[bytes, bytes]) -> Head:
    """Rules between lines; each line's own value was checked when the line was first read."""
    get = headers.get
    if b"host" not in headers:
        raise BadHttp("The Host header is missing.")
    length, coding = get(b"content-length"), get(b"transfer-encoding")
    if coding is not None and length is not None:
        raise BadHttp("Content-Length and Transfer-Encoding must not be given together.")
    return Head(
        path,
        int(length) if length is not None else None,
        coding is not None,
        b"expect" in headers and headers[b"expect"].lower() == b"100-continue",
        b"connection" not in headers or headers[b"connection"].lower() != b"close",
        _api_key(get(b"authorization"), get(b"x-api-key")),
        get(b"x-session-id"),
        get(b"x-tidemark-template"),
        get(b"traceparent"),
    )


def _api_key(authorization: bytes | None, x_api_key: bytes | None) -> str | None:
    if authorization is None:
        return None if x_api_key is None else x_api_key.decode("latin-1")
    if authorization[:7].lower() != b"bearer ":
        return None
    return authorization[7:].strip().decode("latin-1")


def _check_host(value: bytes) -> None:
    if not _HOST.fullmatch(value):
        raise BadHttp("The Host header is malformed.")


def _check_length(value: bytes) -> None:
    if not value.isdigit() or len(value) > _LENGTH_DIGITS_MAX:
        raise BadHttp("The Content-Length header is malformed.")


def _check_coding(value: bytes) -> None:
    if value.lower() != b"chunked":
        raise BadHttp("The only Transfer-Encoding understood is chunked.")


def _check_upgrade(value: bytes) -> None:
    raise BadHttp("Protocol upgrades are not offered here.")


def _check_encoding(value: bytes) -> None:
    if value.lower() != b"identity":
        raise UnsupportedMedia("Compressed request bodies are not accepted.")


def _check_type(value: bytes) -> None:
    if value.partition(b";")[0].strip().lower() != b"application/json":
        raise UnsupportedMedia("The body must be application/json.")


_VALUE_CHECKS: dict[bytes, Callable[[bytes], None]] = {
    b"host": _check_host,
    b"content-length": _check_length,
    b"transfer-encoding": _check_coding,
    b"upgrade": _check_upgrade,
    b"content-encoding": _check_encoding,
    b"content-type": _check_type,
}

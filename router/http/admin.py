"""The admin port: health, readiness, metrics, state and explanations. Nothing here changes how requests are served,
but for signed revocations."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

import msgspec

from router.http.answers import JSON, full_answer

REQUEST_BYTES_MAX = 16 * 1024
"""Of a request's head; asyncio's own limit for one line of it is larger."""
BODY_BYTES_MAX = 32 * 1024 * 1024
"""As large as a client's request may be: a body to explain is one."""
LENGTH_DIGITS_MAX = 15
REQUEST_TIMEOUT_S = 10.0
TEXT = b"text/plain; charset=utf-8"

Answer = tuple[int, bytes, bytes]
"""(status, content type, body)."""
Page = Callable[[dict[str, str]], Answer]
"""Query → answer."""


@dataclass(frozen=True, slots=True)
class Posted:
    query: dict[str, str]
    body: bytes
    api_key: str | None = field(repr=False)
    """Of `Authorization: Bearer …`."""


Action = Callable[[Posted], Answer | Awaitable[Answer]]


class AdminServer:
    """One request a connection: simplicity over speed, since only scrapers and operators come here."""

    def __init__(self, pages: dict[str, Page], actions: dict[str, Action] | None = None) -> None:
        self._pages = pages
        self._actions = actions or {}

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._answer(head, reader))
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, head: bytes, reader: asyncio.StreamReader) -> bytes:
        if not head.startswith(b"POST "):
            return await self.answer(head)
        headers = _headers(head)
        length = headers.get("content-length", "")
        if not (length.isascii() and length.isdigit() and len(length) <= LENGTH_DIGITS_MAX):
            return _page(411, TEXT, b"a Content-Length is needed\n")
        if int(length) > BODY_BYTES_MAX:
            return _page(413, TEXT, b"body too large\n")
        return await self.answer(head, await reader.readexactly(int(length)))

    async def answer(self, head: bytes, body: bytes = b"") -> bytes:
        parts = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
        if len(parts) != 3:
            return _page(400, TEXT, b"malformed request\n")
        method, target, _ = parts
        try:
            url = urlsplit(target)
            query = {name: values[-1] for name, values in parse_qs(url.query, max_num_fields=8).items()}
        except ValueError:
            return _page(400, TEXT, b"malformed URL\n")
        if method == "POST" and url.path in self._actions:
            made = self._actions[url.path](Posted(query, body, _bearer(head)))
            return _page(*(await made if isinstance(made, Awaitable) else made))
        page = self._pages.get(url.path)
        if page is None:
            return _page(404, TEXT, ("one of: " + " ".join(sorted(self._pages)) + "\n").encode())
        if method != "GET":
            return _page(405, TEXT, b"only GET\n")
        return _page(*page(query))


def json_page(status: int, value: object) -> Answer:
    return status, JSON, msgspec.json.encode(value)


def _headers(head: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:])
    return {name.strip().lower(): value.strip() for name, colon, value in lines if colon}


def _bearer(head: bytes) -> str | None:
    kind, _, key = _headers(head).get("authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" and key else None


def _page(status: int, content_type: bytes, body: bytes) -> bytes:
    return full_answer(status, body, request_id="admin", keep_alive=False, content_type=content_type)

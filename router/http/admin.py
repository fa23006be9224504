"""The admin port: health, readiness, metrics, state and explanations. Reading only; nothing here changes anything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import msgspec

from router.http.answers import JSON, full_answer

REQUEST_BYTES_MAX = 16 * 1024
REQUEST_TIMEOUT_S = 10.0
TEXT = b"text/plain; charset=utf-8"

Page = Callable[[dict[str, str]], tuple[int, bytes, bytes]]
"""Query → (status, content type, body)."""


class AdminServer:
    """One request a connection: simplicity over speed, since only scrapers and operators come here."""

    def __init__(self, pages: dict[str, Page]) -> None:
        self._pages = pages

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self.answer(head))
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass
        finally:
            writer.close()

    def answer(self, head: bytes) -> bytes:
        parts = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
        if len(parts) != 3:
            return _page(400, TEXT, b"malformed request\n")
        method, target, _ = parts
        if method != "GET":
            return _page(405, TEXT, b"only GET\n")
        try:
            url = urlsplit(target)
            query = {name: values[-1] for name, values in parse_qs(url.query, max_num_fields=8).items()}
        except ValueError:
            return _page(400, TEXT, b"malformed URL\n")
        page = self._pages.get(url.path)
        if page is None:
            return _page(404, TEXT, ("one of: " + " ".join(sorted(self._pages)) + "\n").encode())
        return _page(*page(query))


def json_page(status: int, value: object) -> tuple[int, bytes, bytes]:
    return status, JSON, msgspec.json.encode(value)


def _page(status: int, content_type: bytes, body: bytes) -> bytes:
    return full_answer(status, body, request_id="admin", keep_alive=False, content_type=content_type)

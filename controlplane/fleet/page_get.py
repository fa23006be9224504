"""A GET of a worker's page over plain HTTP, as lean as a poll of a thousand workers needs it.

One connection a page, to the pinned address and nowhere else: no redirects, no proxy, no cookies, no content coding.
A tenth of a general client's cost; what it does not do (TLS) `http_page` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from urllib.parse import urlsplit

from controlplane.fleet.addresses import Pinned
from controlplane.fleet.http_answer import Answer, NotHttp, TooLarge
from controlplane.fleet.http_page import Page, PageRefused


async def get_page(pinned: Pinned, path: str, *, bytes_max: int, headers: Mapping[str, str] | None = None) -> Page:
    """Status and, of a 200, the body. Raises PageRefused; the caller bounds the time."""
    parts = urlsplit(pinned.url)
    request = _request(pinned.host_header, (parts.path + path) or "/", headers or {})
    loop = asyncio.get_running_loop()
    reading = _Reading(request, Answer(bytes_max=bytes_max), loop.create_future())
    try:
        host, port = parts.hostname or "", parts.port or 80
        transport, _ = await loop.create_connection(lambda: reading, host, port)
    except OSError as error:
        raise PageRefused(
            "unreachable", f"{type(error).__name__}: {error.strerror or 'no connection'}"[:150]
        ) from error
    try:
        return await reading.page
    finally:
        # Whatever is still on its way is not waited for.
        transport.abort()


def _request(host: str, path: str, headers: Mapping[str, str]) -> bytes:
    fields = {"host": host, "accept": "*/*", "accept-encoding": "identity", "connection": "close", **headers}
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    if any("\r" in line or "\n" in line for line in lines):
        raise PageRefused("unreachable", "The address cannot be asked for: it holds a line break.")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


class _Reading(asyncio.Protocol):
    """Sends the request when connected; resolves `page` with the answer or with why there is none."""

    def __init__(self, request: bytes, answer: Answer, page: asyncio.Future[Page]) -> None:
        self.page = page
        self._request = request
        self._answer = answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self.page.done():
            return
        try:
            self._answer.feed(data)
        except TooLarge as error:
            self.page.set_exception(PageRefused("too_large", str(error)))
        except NotHttp as error:
            self.page.set_exception(PageRefused("unreachable", str(error)))
        else:
            self._tell_if_complete()

    def connection_lost(self, error: Exception | None) -> None:
        if self.page.done():
            return
        if error is not None:
            # A reset may cut a page whose end nothing but the connection's tells.
            self.page.set_exception(PageRefused("unreachable", f"{type(error).__name__}: the connection broke."))
            return
        try:
            self._answer.end()
        except NotHttp as refused:
            self.page.set_exception(PageRefused("unreachable", str(refused)))
        else:
            self._tell_if_complete()

    def _tell_if_complete(self) -> None:
        if self._answer.complete:
            self.page.set_result(Page(self._answer.status, bytes(self._answer.body)))

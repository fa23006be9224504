"""Fetching from a worker: to the pinned address, no redirects, no proxy environment, bounded bytes and time."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import httpx

from controlplane.fleet.addresses import Pinned

CONNECTIONS_MAX = 32
"""Scrapes of one shard that run at the same time."""


class PageRefused(Exception):
    """The answer cannot be used: `kind` is `too_large`, `status`, `not_text` or `unreachable`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Page:
    status: int
    body: bytes


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    """Loading the certificate store takes tens of milliseconds: once a process."""
    return ssl.create_default_context()


def new_client(*, timeout_s: float) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        timeout=httpx.Timeout(timeout_s),
        follow_redirects=False,
        trust_env=False,
        verify=_tls(),
        limits=httpx.Limits(max_connections=CONNECTIONS_MAX, max_keepalive_connections=CONNECTIONS_MAX),
    )


async def fetch(
    client: httpx.AsyncClient,
    pinned: Pinned,
    path: str,
    *,
    bytes_max: int,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    json: object = None,
) -> Page:
    """The answer's status and body, whatever the status. Raises PageRefused; the caller bounds the time.

    The body is cut off at `bytes_max` as it arrives: a worker cannot make the poller hold more.
    """
    request = client.build_request(
        method,
        pinned.url + path,
        headers={"host": pinned.host_header, "accept-encoding": "identity", **(headers or {})},
        json=json,
        extensions={"sni_hostname": pinned.server_name},
    )
    try:
        response = await client.send(request, stream=True)
        try:
            return Page(response.status_code, await _bounded_body(response, bytes_max))
        finally:
            await response.aclose()
    except httpx.HTTPError as error:
        raise PageRefused("unreachable", f"{type(error).__name__}: {str(error)[:150]}") from error


async def _bounded_body(response: httpx.Response, bytes_max: int) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > bytes_max:
            raise PageRefused("too_large", f"The answer is larger than {bytes_max // 1024} KiB.")
    return bytes(body)


def text_of(page: Page) -> str:
    """The body of a 200 as text. Raises PageRefused for another status or bytes that are not UTF-8."""
    if page.status != 200:
        raise PageRefused("status", f"The worker answered with status {page.status}.")
    try:
        return page.body.decode()
    except UnicodeDecodeError as error:
        raise PageRefused("not_text", "The answer is not text.") from error

"""One signed request to a receiver: to the address that was checked (S17), bounded in time and bytes.

The signature covers the moment and the body, so that nobody can repeat an old message as a fresh one:

    Tidemark-Timestamp: 1790000000
    Tidemark-Signature: v1=<hexadecimal HMAC-SHA256 of "<timestamp>.<body>" by the subscription's secret>
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from controlplane.fleet.addresses import AddressRefused, Pinned, check_http, parse_endpoint, pin
from controlplane.fleet.http_page import new_client

TIMEOUT_S = 10.0
"""Of the whole attempt."""
ANSWER_BYTES_MAX = 4096
"""The answer's body is read so far and thrown away: it may be an echo of anything."""
SCHEMES = ("https", "http")
_DEFAULT_PORTS = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True)
class Outcome:
    status: int | None
    error: str = ""

    @property
    def ok(self) -> bool:
        return not self.error


def checked_url(text: str, *, networks: Sequence[str]) -> tuple[str, str]:
    """(normal form, origin) after form and networks were checked. Raises AddressRefused."""
    try:
        url = check_http(_with_port(text), networks=networks, path_allowed=True)
    except AddressRefused as error:
        raise AddressRefused(str(error).replace("TIDEMARK_WORKER_NETWORKS", "TIDEMARK_WEBHOOK_NETWORKS")) from None
    parts = urlsplit(url)
    return url, f"{parts.scheme}://{parts.netloc}"


def send(
    url: str, body: dict[str, Any], *, secret: str, event: str, delivery: str, at: int, networks: Sequence[str]
) -> Outcome:
    """`at`: Unix seconds. The name is resolved anew, and every address checked, at each attempt. Never raises."""
    content = json.dumps(body, separators=(",", ":"), ensure_ascii=True).encode()
    try:
        pinned = pin(parse_endpoint(url, schemes=SCHEMES, path_allowed=True), networks=networks)
    except AddressRefused:
        # Its words may hold the address's path.
        return Outcome(None, "The address is not allowed, or does not resolve.")
    headers = {
        "host": pinned.host_header,
        "content-type": "application/json",
        "user-agent": "tidemark",
        "tidemark-event": event,
        "tidemark-delivery": delivery,
        "tidemark-timestamp": str(at),
        "tidemark-signature": signature(secret, at, content),
    }
    try:
        return asyncio.run(_post(pinned, content, headers))
    except TimeoutError:
        return Outcome(None, f"No answer within {TIMEOUT_S:.0f} s.")
    except httpx.HTTPError as error:
        return Outcome(None, type(error).__name__)


def signature(secret: str, at: int, content: bytes) -> str:
    return "v1=" + hmac.digest(secret.encode(), f"{at}.".encode() + content, hashlib.sha256).hex()


async def _post(pinned: Pinned, content: bytes, headers: dict[str, str]) -> Outcome:
    async with asyncio.timeout(TIMEOUT_S), new_client(timeout_s=TIMEOUT_S) as client:
        request = client.build_request(
            "POST", pinned.url, content=content, headers=headers, extensions={"sni_hostname": pinned.server_name}
        )
        answer = await client.send(request, stream=True)
        try:
            await _drain(answer)
        finally:
            await answer.aclose()
    if 200 <= answer.status_code < 300:
        return Outcome(answer.status_code)
    return Outcome(answer.status_code, f"It answered with status {answer.status_code}.")


async def _drain(answer: httpx.Response) -> None:
    seen = 0
    async for piece in answer.aiter_raw():
        seen += len(piece)
        if seen > ANSWER_BYTES_MAX:
            return


def _with_port(text: str) -> str:
    """Receivers are usually named without one; the rule of addresses wants to be told."""
    try:
        parts = urlsplit(text)
        if parts.port is None and parts.scheme in _DEFAULT_PORTS and parts.netloc and not parts.netloc.endswith(":"):
            return parts._replace(netloc=f"{parts.netloc}:{_DEFAULT_PORTS[parts.scheme]}").geturl()
    except ValueError:
        pass
    return text

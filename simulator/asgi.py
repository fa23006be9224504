"""The little HTTP that the worker needs over plain ASGI: bounded bodies, JSON answers, server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

BODY_BYTES_MAX = 64 * 1024 * 1024
"""A megatoken prompt is 4 MB of text."""

_encode = msgspec.json.Encoder().encode


class BodyTooLarge(Exception):
    """The request's body is longer than BODY_BYTES_MAX."""


@dataclass(slots=True)
class Exchange:
    """One request and its answer."""

    method: str
    path: str
    query: bytes
    headers: dict[bytes, bytes]
    receive: Receive
    send: Send
    request_id: str
    status: int = 0
    request_bytes: int = 0
    response_bytes: int = 0
    extra_headers: list[tuple[bytes, bytes]] = field(default_factory=list)

    async def body(self) -> bytes:
        """Raises BodyTooLarge, and ConnectionError when the client leaves before the end."""
        parts: list[bytes] = []
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ConnectionError("the client left before its request was complete")
            parts.append(message.get("body", b""))
            self.request_bytes += len(parts[-1])
            if self.request_bytes > BODY_BYTES_MAX:
                raise BodyTooLarge
            if not message.get("more_body"):
                return b"".join(parts)

    async def start(self, status: int, content_type: str, length: int | None = None) -> None:
        self.status = status
        headers = [(b"content-type", content_type.encode()), (b"x-request-id", self.request_id.encode())]
        if length is not None:
            headers.append((b"content-length", str(length).encode()))
        await self.send({"type": "http.response.start", "status": status, "headers": headers + self.extra_headers})

    async def write(self, data: bytes, *, more: bool = True) -> None:
        self.response_bytes += len(data)
        await self.send({"type": "http.response.body", "body": data, "more_body": more})

    async def answer(self, status: int, data: bytes, content_type: str = "application/json") -> None:
        await self.start(status, content_type, len(data))
        await self.write(data, more=False)

    async def answer_json(self, status: int, value: Any) -> None:
        await self.answer(status, _encode(value))

    async def write_event(self, value: Any, *, name: str = "") -> None:
        front = f"event: {name}\n".encode() if name else b""
        await self.write(front + b"data: " + _encode(value) + b"\n\n")


@contextlib.asynccontextmanager
async def cancelled_on_disconnect(exchange: Exchange) -> Any:
    """Cancels the enclosed work when the client leaves; swallows exactly that cancellation."""
    task = asyncio.current_task()
    assert task is not None
    left = False

    async def watch() -> None:
        nonlocal left
        while (await exchange.receive())["type"] != "http.disconnect":
            pass
        left = True
        task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if not left:
            raise
        task.uncancel()
    finally:
        watcher.cancel()

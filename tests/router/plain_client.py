"""An HTTP client that costs a tenth of a real one, for tests of thousands of requests on one connection."""

from __future__ import annotations

import asyncio
import json

from tests.router.conftest import ALICE_KEY


class PlainClient:
    """One request after another; opens its connection again when the router closed it."""

    def __init__(self, port: int, *, key: str = ALICE_KEY) -> None:
        self._port = port
        self._head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-length: "
        ).encode()
        self._writer: asyncio.StreamWriter | None = None

    async def post(self, body: object) -> tuple[int, bytes]:
        """(status, payload): of a stream its events, whole or not."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        data = json.dumps(body).encode()
        self._writer.write(b"%b%d\r\n\r\n%b" % (self._head, len(data), data))
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        if b"transfer-encoding: chunked" in head:
            payload = await self._chunks()
        else:
            payload = await self._reader.readexactly(int(head.partition(b"content-length: ")[2].split(b"\r\n")[0]))
        if b"connection: close" in head or self._reader.at_eof():
            self.close()
        return int(head.split(b" ")[1]), payload

    async def _chunks(self) -> bytes:
        payload = b""
        while True:
            size = int(await self._reader.readuntil(b"\r\n"), 16)
            piece = await self._reader.readexactly(size + 2)
            if not size:
                return payload
            payload += piece[:-2]

    def close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None

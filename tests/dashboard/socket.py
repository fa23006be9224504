"""A websocket to an ASGI application in this process, without a server."""

from __future__ import annotations

import gzip
import json
from typing import Any

from asgiref.testing import ApplicationCommunicator


class Socket:
    """Speaks the ASGI websocket messages; one connection."""

    def __init__(self, application: Any, path: str, headers: list[tuple[bytes, bytes]]) -> None:
        scope = {"type": "websocket", "path": path, "query_string": b"", "headers": headers, "subprotocols": []}
        self._asgi = ApplicationCommunicator(application, scope)

    async def connect(self) -> bool:
        """Whether the handshake was accepted."""
        await self._asgi.send_input({"type": "websocket.connect"})
        return (await self._asgi.receive_output(5))["type"] == "websocket.accept"

    async def send(self, text: str) -> None:
        await self._asgi.send_input({"type": "websocket.receive", "text": text})

    async def send_json(self, message: object) -> None:
        await self.send(json.dumps(message))

    async def receive_json(self) -> dict[str, Any]:
        output = await self._asgi.receive_output(5)
        assert output["type"] == "websocket.send", output
        packed = output.get("bytes")
        return json.loads(gzip.decompress(packed) if packed else output["text"])

    async def closed_with(self) -> int:
        """The code with which the server closes next."""
        output = await self._asgi.receive_output(5)
        assert output["type"] == "websocket.close", output
        return int(output["code"])

    async def silent_for(self, seconds: float) -> bool:
        return await self._asgi.receive_nothing(seconds)

    async def leave(self) -> None:
        await self._asgi.send_input({"type": "websocket.disconnect", "code": 1000})
        await self._asgi.wait(5)

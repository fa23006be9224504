"""A raw TCP worker that answers by script and records exactly what arrived: the tests' upstream echo."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

Script = Callable[["Asked", asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Asked:
    raw_head: bytes
    body: bytes

    @property
    def json(self) -> dict:
        return json.loads(self.body)

    def header(self, name: str) -> str | None:
        for line in self.raw_head.decode().split("\r\n")[1:]:
            key, _, value = line.partition(":")
            if key.lower() == name:
                return value.strip()
        return None


class ScriptedWorker:
    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.connections = 0
        self.disconnected = asyncio.Event()
        self.script: Script = answer_json()
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> ScriptedWorker:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    async def start_again(self) -> None:
        """After `stop`, on the same port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def stop(self) -> None:
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                asked = Asked(head[:-4], b"")
                asked.body = await reader.readexactly(int(asked.header("content-length") or 0))
                self.asked.append(asked)
                script = asyncio.create_task(self.script(asked, writer))
                gone = asyncio.create_task(reader.read(1)) if getattr(self.script, "watches", False) else None
                if gone is not None:
                    await asyncio.wait((script, gone), return_when=asyncio.FIRST_COMPLETED)
                    if gone.done():
                        script.cancel()
                        self.disconnected.set()
                        return
                    gone.cancel()
                await script
                if writer.is_closing():
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()


USAGE = {
    "prompt_tokens": 100,
    "total_tokens": 110,
    "completion_tokens": 10,
    "prompt_tokens_details": {"cached_tokens": 64},
}


def completion(usage: object = USAGE) -> dict:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
        "usage": usage,
    }


def answer_json(
    body: object = None, *, status: int = 200, content_type: str = "application/json", extra: str = ""
) -> Script:
    data = body if isinstance(body, bytes) else json.dumps(body or completion(), separators=(",", ":")).encode()

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(
            f"HTTP/1.1 {status} X\r\nserver: uvicorn\r\nx-worker: w1\r\ncontent-type: {content_type}\r\n{extra}"
            f"content-length: {len(data)}\r\n\r\n".encode()
            + data
        )
        await writer.drain()

    return script


def event(delta: str) -> bytes:
    choice = {"index": 0, "delta": {"content": delta}, "finish_reason": None}
    body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


def usage_event(usage: object = USAGE) -> bytes:
    body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [], "usage": usage}
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def stream(*writes: bytes, head: bytes = STREAM_HEAD, end: bytes = b"0\r\n\r\n", pause_s: float = 0.0) -> Script:
    """Each of `writes` becomes one chunk and one write."""

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        for data in writes:
            writer.write(chunk(data))
            await writer.drain()
            await asyncio.sleep(pause_s)
        writer.write(end)
        await writer.drain()

    return script


def raw(*writes: bytes, close: bool = True, pause_s: float = 0.0) -> Script:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        for data in writes:
            writer.write(data)
            await writer.drain()
            await asyncio.sleep(pause_s)
        if close:
            writer.close()

    return script


def watching(script: Script) -> Script:
    """The worker notices when the router hangs up during the script."""

    async def watched(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await script(asked, writer)

    watched.watches = True
    return watched


async def hang(asked: Asked, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(3600)

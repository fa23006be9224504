"""A mock worker for exact mode: `/tokenize` with a real tokenizer and template, chat answers after a fixed time.

    python -m benchmarks.tokenizing_worker PORT EVENTS_PORT REPLAY_PORT MODEL_FOLDER ANSWER_MS

Its KV events' sockets are open and silent, as those of a worker that computes nothing that is worth a block; its usage
tells no cached tokens, so that nothing is held against that.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from router.adapters.chat_messages import Unrenderable
from router.adapters.tokenizer import ExactTokenizer
from router.adapters.tokenizer_files import load_model_files
from router.core.exact.block_hashes import BlockHasher
from simulator.publisher import EventPublisher

ALGORITHM, BLOCK_SIZE = "sha256", 16
_CHAT = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 16, "total_tokens": 17, "completion_tokens": 1},
    }
).encode()


class Connection(asyncio.Protocol):
    """One request after another, with Content-Length; nothing is checked: the router and the benchmark are its only
    clients."""

    def __init__(self, tokenizer: ExactTokenizer, answer_s: float) -> None:
        self._tokenizer = tokenizer
        self._answer_s = answer_s
        self._received = b""
        self._transport: Any = None  # asyncio hands a WriteTransport typed as its base

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, rest = self._received.partition(b"\r\n\r\n")
        if not found:
            return
        length = next(
            (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
        )
        if len(rest) >= length:
            self._received = rest[length:]
            self._answer(head, rest[:length])

    def _answer(self, head: bytes, body: bytes) -> None:
        path = head.split(b" ", 2)[1]
        if path == b"/tokenize":
            self._send(*_tokenized(self._tokenizer, body))
        elif path == b"/v1/models":
            self._send(b"200 OK", b'{"object":"list","data":[{"id":"m"}]}')
        elif path == b"/v1/models":
            self._send(b"200 OK", b'{"object":"list","data":[{"id":"m","object":"model","root":"m","parent":null}]}')
        elif path.startswith(b"/v1/"):
            asyncio.get_running_loop().call_later(self._answer_s, self._send, b"200 OK", _CHAT)
        else:
            self._send(b"200 OK", b"{}")

    def _send(self, status: bytes, body: bytes) -> None:
        self._transport.write(
            b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)
        )


def _tokenized(tokenizer: ExactTokenizer, body: bytes) -> tuple[bytes, bytes]:
    fields = json.loads(body)
    try:
        tokens = tokenizer.token_ids(fields, chat="messages" in fields)
    except Unrenderable:
        return b"400 Bad Request", b"{}"
    return b"200 OK", json.dumps({"count": len(tokens), "tokens": tokens}).encode()


async def serve(port: int, events_port: int, replay_port: int, folder: Path, answer_s: float) -> None:
    hasher = BlockHasher(algorithm=ALGORITHM, block_size=BLOCK_SIZE)
    tokenizer = ExactTokenizer(load_model_files(folder), hasher=hasher, secret=bytes(32))
    publisher = EventPublisher(host="127.0.0.1", port=events_port, replay_port=replay_port, topic="kv@w1@m")
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(tokenizer, answer_s), "127.0.0.1", port, backlog=1024
    )
    async with server:
        await asyncio.gather(server.serve_forever(), publisher.serve_replays())


if __name__ == "__main__":
    port, events, replay, folder, answer_ms = sys.argv[1:]
    asyncio.run(serve(int(port), int(events), int(replay), Path(folder), float(answer_ms) / 1000))

"""A worker that tokenises, caches and tells of it as vLLM does: `/tokenize`, completions with cached tokens, KV events.

Its cache is a set of block hashes; it computes them with the code under test, whose agreement with vLLM is held against
recorded and real workers elsewhere.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from router.adapters.tokenizer import ExactTokenizer
from router.adapters.tokenizer_files import load_model_files
from router.contract.snapshot import WorkerEntry
from router.core.exact.block_hashes import BlockHasher
from tests.router.scripted_worker import Asked, ScriptedWorker, answer_json, completion

BLOCK_SIZE = 16


class ExactWorker:
    def __init__(self, model_folder: Path) -> None:
        self.http = ScriptedWorker()
        self.http.script = self._serve
        self.shift = 0
        """Added to every token id that it tells: another tokenizer."""
        self.tokenize_status = 200
        self.lies = False
        """Whether it tells of blocks that it does not use."""
        self.mute = False
        """Whether it tells of nothing."""
        self.cached: list[int] = []
        """Cached tokens of each answer."""
        self._hasher = BlockHasher(algorithm="sha256", block_size=BLOCK_SIZE)
        self._tokenizer = ExactTokenizer(load_model_files(model_folder), hasher=self._hasher, secret=bytes(32))
        self._cache: set[int] = set()
        self._batches: list[bytes] = []

    async def start(self) -> ExactWorker:
        await self.http.start()
        self._open(0, 0)
        return self

    async def stop(self) -> None:
        self._close()
        self._tokenizer.close()
        await self.http.stop()

    def entry(self, **fields: Any) -> WorkerEntry:
        values = {"kv_events": self.endpoints[0], "kv_replay": self.endpoints[1], "hash_algorithm": "sha256"}
        return WorkerEntry(pool="p", url=self.http.url, **(values | fields))

    def die(self) -> None:
        """Its sockets for events close, and what it held is gone."""
        self._close()
        self._cache, self._batches = set(), []

    def revive(self) -> None:
        self._open(*(int(endpoint.rpartition(":")[2]) for endpoint in self.endpoints))

    def _open(self, *ports: int) -> None:
        self._context = zmq.asyncio.Context()
        self._live, self._replays = self._context.socket(zmq.PUB), self._context.socket(zmq.ROUTER)
        for socket, port in zip((self._live, self._replays), ports, strict=True):
            socket.bind(f"tcp://127.0.0.1:{port}")
        self.endpoints = [socket.getsockopt(zmq.LAST_ENDPOINT).decode() for socket in (self._live, self._replays)]
        self._replaying = asyncio.create_task(self._replay())

    def _close(self) -> None:
        self._replaying.cancel()
        self._context.destroy(linger=0)

    async def _replay(self) -> None:
        while True:
            client, empty, start = await self._replays.recv_multipart()
            for seq in range(int.from_bytes(start, "big"), len(self._batches)):
                frames = [client, empty, b"kv", seq.to_bytes(8, "big"), self._batches[seq]]
                await self._replays.send_multipart(frames)
            await self._replays.send_multipart([client, empty, b"", b"\xff" * 8, b""])

    async def _serve(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        body = asked.json
        ids = self._tokenizer.token_ids(body, chat="messages" in body)
        if asked.raw_head.startswith(b"POST /tokenize "):
            answer: Any = {"count": len(ids), "tokens": [token + self.shift for token in ids]}
            await answer_json(answer, status=self.tokenize_status)(asked, writer)
            return
        cached = await self._compute(ids, body["cache_salt"])
        cached = 0 if self.lies else cached
        self.cached.append(cached)
        details = {"cached_tokens": cached}
        usage = {"prompt_tokens": len(ids), "completion_tokens": 1, "prompt_tokens_details": details}
        await answer_json(completion(usage))(asked, writer)

    async def _compute(self, ids: list[int], salt: str) -> int:
        """Cached tokens; the prompt's whole blocks are held afterwards, and told of."""
        hashes = self._hasher.hashes(ids, salt=salt)
        held = next((i for i, block in enumerate(hashes) if block not in self._cache), len(hashes))
        fresh = hashes[held:]
        if fresh:
            self._cache.update(fresh)
            stored = {"type": "BlockStored", "block_hashes": fresh, "block_size": BLOCK_SIZE, "medium": "GPU"}
            await self._publish([stored])
        return min(held, (len(ids) - 1) // BLOCK_SIZE) * BLOCK_SIZE

    async def _publish(self, events: list[dict[str, Any]]) -> None:
        payload = msgspec.msgpack.encode([0.0, events, 0])
        self._batches.append(payload)
        if not self._context.closed and not self.mute:
            await self._live.send_multipart([b"kv", (len(self._batches) - 1).to_bytes(8, "big"), payload])

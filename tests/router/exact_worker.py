"""A worker that tokenises, caches and tells of it as vLLM does: `/tokenize`, completions with cached tokens, KV events.

Its cache is a set of block hashes; it computes them with the code under test, whose agreement with vLLM is held against
recorded and real workers elsewhere.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from router.adapters.exact_dialects import Dialects
from router.adapters.tokenizer import ExactTokenizer
from router.adapters.tokenizer_files import load_model_files
from router.contract.snapshot import WorkerEntry
from router.core.exact.block_hashes import Adapter, BlockHasher
from tests.router.conftest import MODEL
from tests.router.scripted_worker import (
    DONE,
    Asked,
    Script,
    ScriptedWorker,
    answer_json,
    completion,
    event,
    stream,
    usage_event,
)

BLOCK_SIZE = 16
KINDS = {
    b"/v1/chat/completions": "chat", b"/v1/completions": "text", b"/v1/messages": "messages",
    b"/v1/responses": "responses", b"/tokenize": "",
}  # fmt: skip


class ExactWorker:
    def __init__(self, model_folder: Path) -> None:
        self.http = ScriptedWorker()
        self.http.script = self._serve
        self.shift = 0
        """Added to every token id that it tells: another tokenizer."""
        self.tokenize_status = 200
        self.adapters: dict[str, str] = {}
        """Name → path."""
        self.lies = False
        """Whether it tells of blocks that it does not use."""
        self.mute = False
        """Whether it tells of nothing."""
        self.loses = 0.0
        """Share of its event batches that are numbered and kept for replays, but never arrive."""
        self.lost = 0
        self.forgets = False
        """Whether it keeps no batch for replays but its newest."""
        self.reply_ids: list[int] = []
        """Tokens that it generates: with the prompt's they stay in its cache, as they were generated."""
        self.others: dict[str, ExactWorker] | None = None
        """By engine id: the workers that pull from each other, as by NIXL; None = it has no such connector."""
        self.offers: dict[str, tuple[str, list[int]]] = {}
        """By request: salt and block hashes that another worker may pull, once."""
        self.withholds = False
        """Whether it answers without an offer."""
        self.drops_offers = False
        """Whether its offers lead nowhere."""
        self.computed: list[int] = []
        """Tokens that each answer took to compute."""
        self.bodies: list[dict[str, Any]] = []
        self._dice = random.Random(11)
        self.cached: list[int] = []
        """Cached tokens of each answer."""
        self._hasher = BlockHasher(algorithm="sha256", block_size=BLOCK_SIZE)
        self._tokenizer = ExactTokenizer(load_model_files(model_folder), hasher=self._hasher, secret=bytes(32))
        self._dialects = Dialects(self._tokenizer.template)
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
            first = len(self._batches) - 1 if self.forgets else 0
            for seq in range(max(int.from_bytes(start, "big"), first), len(self._batches)):
                frames = [client, empty, b"kv", seq.to_bytes(8, "big"), self._batches[seq]]
                await self._replays.send_multipart(frames)
            await self._replays.send_multipart([client, empty, b"", b"\xff" * 8, b""])

    async def _serve(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.raw_head.startswith(b"GET /v1/models "):
            cards = [{"id": MODEL}] + [
                {"id": name, "root": path, "parent": MODEL} for name, path in self.adapters.items()
            ]
            await answer_json({"object": "list", "data": cards})(asked, writer)
            return
        body = asked.json
        kind = KINDS[asked.raw_head.split(b" ", 2)[1]]
        fields = {name: msgspec.json.encode(value) for name, value in body.items()}
        decoded, chat = self._dialects.decode(fields, kind or ("chat" if "messages" in body else "text"))
        ids = self._tokenizer.token_ids(decoded, chat=chat)
        if asked.raw_head.startswith(b"POST /tokenize "):
            answer: Any = {"count": len(ids), "tokens": [token + self.shift for token in ids]}
            await answer_json(answer, status=self.tokenize_status)(asked, writer)
            return
        self.bodies.append(body)
        path = self.adapters.get(body["model"])
        params = body.get("kv_transfer_params") if self.others is not None else None
        pulled = await self._pull(params) if params and params.get("do_remote_prefill") else 0
        if pulled is None:
            await self._fail(body)(asked, writer)
            return
        held = await self._compute(ids, body["cache_salt"], path and Adapter(body["model"], path))
        self.computed.append(1 if pulled else len(ids) - held)
        cached = 0 if self.lies else params["remote_prefill_cached_tokens"] if pulled else held
        self.cached.append(cached)
        if self.reply_ids:
            await self._compute(ids + self.reply_ids, body["cache_salt"])
        details = {"cached_tokens": cached}
        more = {"kv_transfer_params": self._offer(ids, body, cached, asked)} if params and not pulled else {}
        if kind in ("messages", "responses"):
            await answer_json({"usage": {"input_tokens": len(ids) - cached, "output_tokens": 1,
                                         "cache_read_input_tokens": cached}} | more)(asked, writer)  # fmt: skip
            return
        usage = {"prompt_tokens": len(ids), "completion_tokens": 1, "prompt_tokens_details": details}
        if body.get("stream"):
            await stream(event("hello"), usage_event(usage), DONE)(asked, writer)
            return
        await answer_json(completion(usage) | more)(asked, writer)

    def _offer(self, ids: list[int], body: dict[str, Any], cached: int, asked: Asked) -> dict[str, Any] | None:
        if self.withholds:
            return None
        request, salt = asked.header("x-request-id") or "", body["cache_salt"]
        if not self.drops_offers:
            self.offers[request] = salt, self._hasher.hashes(ids, salt=salt).tolist()
        return {
            "do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [list(range(len(ids) // 16))],
            "remote_engine_id": self.http.url, "remote_request_id": request, "remote_host": "127.0.0.1",
            "remote_port": 1, "tp_size": 1, "remote_prefill_cached_tokens": cached,
        }  # fmt: skip

    async def _pull(self, params: dict[str, Any]) -> int | None:
        """Blocks that came; None when the transfer failed."""
        assert self.others is not None
        source = self.others.get(params["remote_engine_id"])
        offer = None if source is None else source.offers.pop(params["remote_request_id"], None)
        if offer is None:
            return None
        fresh = [block for block in offer[1] if block not in self._cache]
        self._cache.update(fresh)
        if fresh:
            stored = {"type": "BlockStored", "block_hashes": fresh, "block_size": BLOCK_SIZE, "medium": "GPU"}
            await self._publish([stored])
        return len(offer[1])

    def _fail(self, body: dict[str, Any]) -> Script:
        """As `kv_load_failure_policy` `fail` has it."""
        error = {"error": {"message": "KV load failed", "type": "InternalServerError", "code": 500}}
        if not body.get("stream"):
            return answer_json(error, status=500)
        return stream(b"data: " + msgspec.json.encode(error) + b"\n\n", DONE)

    async def _compute(self, ids: list[int], salt: str, adapter: Adapter | None = None) -> int:
        """Cached tokens; the prompt's whole blocks are held afterwards, and told of."""
        hashes = self._hasher.hashes(ids, salt=salt, adapter=adapter).tolist()
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
        if self._dice.random() < self.loses:
            self.lost += 1
        elif not self._context.closed and not self.mute:
            await self._live.send_multipart([b"kv", (len(self._batches) - 1).to_bytes(8, "big"), payload])

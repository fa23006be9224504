"""Against a real worker of the lab (`make test-vllm`): hashes computed here are the ones in its KV events."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import zmq

from router.adapters.parity import check_parity
from router.adapters.tokenizer import Caller, ExactTokenizer
from router.adapters.tokenizer_files import load_model_files
from router.contract.ids import TenantId
from router.core.exact.block_hashes import BlockHasher
from router.core.exact.chains import ExactPrefix

pytestmark = pytest.mark.vllm

URL = "http://127.0.0.1:18001"
EVENTS = "tcp://127.0.0.1:18101"
BLOCK_SIZE = 32
EVENT_TIMEOUT_MS = 5000


@pytest.fixture(scope="module")
def worker_model() -> Path:
    return Path(os.environ.get("VLLM_LAB") or Path.home() / ".cache" / "vllm-lab") / "model"


@pytest.fixture
def exact(worker_model: Path) -> Iterator[ExactTokenizer]:
    hasher = BlockHasher(algorithm="sha256", block_size=BLOCK_SIZE)
    tokenizer = ExactTokenizer(load_model_files(worker_model), hasher=hasher, secret=bytes(32))
    yield tokenizer
    tokenizer.close()


@pytest.fixture
def events() -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.subscribe(b"")
        socket.connect(EVENTS)
        # A subscription takes effect a moment after connect; the first message proves it.
        socket.rcvtimeo = 500
        for _ in range(20):
            httpx.post(f"{URL}/v1/completions", json=_body(prompt=f"{uuid.uuid4()} " * 20), timeout=60)
            try:
                socket.recv_multipart()
                break
            except zmq.Again:
                continue
        while socket.poll(300):
            socket.recv_multipart()
        socket.rcvtimeo = EVENT_TIMEOUT_MS
        yield socket


async def test_a_real_worker_tokenises_every_probe_as_we_do(exact: ExactTokenizer) -> None:
    async with httpx.AsyncClient() as client:
        report = await check_parity(client, URL, exact, model="tiny")
    assert report.verdict == "equal", report
    assert report.skipped == 0


LONG = "".join(f"def function_{n}(value): return value * {n}  # naïve 😀\n" for n in range(40))
SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"enum": [1, 2]}}}
REQUESTS: dict[str, tuple[bool, dict[str, Any]]] = {
    "chat": (True, {"messages": [{"role": "system", "content": LONG}, {"role": "user", "content": "Why?"}]}),
    "parts and a literal": (
        True,
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": LONG}, {"type": "text", "text": "<|end|>"}]}
            ]
        },
    ),
    "tools": (
        True,
        {
            "messages": [{"role": "user", "content": LONG}],
            "tools": [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}],
            "tool_choice": "none",
        },
    ),
    "a prompt": (False, {"prompt": LONG}),
    "token ids": (False, {"prompt": [n % 4000 for n in range(200)]}),
}


@pytest.mark.parametrize("name", REQUESTS)
async def test_its_events_carry_the_hashes_computed_here(
    exact: ExactTokenizer, events: zmq.Socket[bytes], name: str
) -> None:
    chat, fields = REQUESTS[name]
    salt = uuid.uuid4().hex
    prefix = await exact.fingerprint(Caller(TenantId("acme"), salt), fields, chat=chat)
    first, again = (_ask(chat, fields, salt) for _ in range(2))
    assert first["prompt_tokens"] == prefix.tokens
    assert prefix.hashes and _stored(events, prefix) == prefix.hashes
    cached = (again.get("prompt_tokens_details") or {}).get("cached_tokens")
    assert cached == prefix.hittable_blocks * BLOCK_SIZE


def _ask(chat: bool, fields: dict[str, Any], salt: str) -> dict[str, Any]:
    path = "/v1/chat/completions" if chat else "/v1/completions"
    answer = httpx.post(URL + path, json=_body(**fields, cache_salt=salt), timeout=60)
    assert answer.status_code == 200, answer.status_code
    usage: dict[str, Any] = answer.json()["usage"]
    return usage


def _body(**fields: Any) -> dict[str, Any]:
    return json.loads(json.dumps({"model": "tiny", "max_tokens": 1, **fields}))


def _stored(events: zmq.Socket[bytes], prefix: ExactPrefix) -> list[int]:
    """Hashes of the prefix in the order the worker stored them; other traffic's are passed over."""
    awaited, stored = set(prefix.hashes), []
    while len(stored) < len(prefix.hashes):
        *_, payload = events.recv_multipart()
        for event in msgspec.msgpack.decode(payload)[1]:
            if event["type"] == "BlockStored":
                stored += [told for told in event["block_hashes"] if told in awaited]
    return stored

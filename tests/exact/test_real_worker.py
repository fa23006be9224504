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

from router.adapters.exact_dialects import Dialects
from router.adapters.parity import check_parity
from router.adapters.tokenizer import Caller, ExactTokenizer
from router.adapters.tokenizer_files import load_model_files
from router.contract.ids import TenantId
from router.core.exact.block_hashes import BlockHasher
from router.core.exact.chains import ExactPrefix
from router.http.usage import Usage, read_usage

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
USE = {"type": "tool_use", "id": "call00001", "name": "look", "input": {"b": "é", "a": [1, 2.5]}}
RESULT = {"type": "tool_result", "tool_use_id": "call00001", "content": [{"type": "text", "text": "found"}]}
CALL = {"type": "function_call", "call_id": "call00001", "name": "look", "arguments": '{"b": "é"}'}
OUTPUT = {"type": "function_call_output", "call_id": "call00001", "output": "found"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]}
PARTS = [{"type": "input_text", "text": LONG}, {"type": "input_text", "text": "Why?"}]
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "messages": ("messages", {"system": LONG, "messages": [{"role": "user", "content": "Why?"}]}),
    "messages with tools": (
        "messages",
        {
            "system": [{"type": "text", "text": LONG}, {"type": "text", "text": "Be brief."}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
                {"role": "assistant", "content": [{"type": "text", "text": "I look."}, USE]},
                {"role": "user", "content": [RESULT, {"type": "text", "text": "and?"}]},
                {"role": "system", "content": "A note."},
                {"role": "user", "content": "Go on."},
            ],
            "tools": [{"name": "look", "description": "<é>", "input_schema": {"properties": SCHEMA["properties"]}}],
            "tool_choice": {"type": "none"},
            "thinking": {"type": "disabled"},
        },
    ),
    "responses": ("responses", {"instructions": LONG, "input": "Why?"}),
    "responses with tools": (
        "responses",
        {
            "input": [
                {"type": "message", "role": "user", "content": PARTS},
                THOUGHT,
                CALL,
                OUTPUT,
                {"role": "user", "content": "Go on."},
            ],
            "tools": [{"type": "function", "name": "look", "description": "<é>", "parameters": SCHEMA}],
            "tool_choice": "none",
            "reasoning": {"effort": "low"},
        },
    ),
    "chat": ("chat", {"messages": [{"role": "system", "content": LONG}, {"role": "user", "content": "Why?"}]}),
    "parts and a literal": (
        "chat",
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": LONG}, {"type": "text", "text": "<|end|>"}]}
            ]
        },
    ),
    "tools": (
        "chat",
        {
            "messages": [{"role": "user", "content": LONG}],
            "tools": [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}],
            "tool_choice": "none",
        },
    ),
    "a prompt": ("text", {"prompt": LONG}),
    "token ids": ("text", {"prompt": [n % 4000 for n in range(200)]}),
}


@pytest.mark.parametrize("name", REQUESTS)
async def test_its_events_carry_the_hashes_computed_here(
    exact: ExactTokenizer, events: zmq.Socket[bytes], name: str
) -> None:
    kind, fields = REQUESTS[name]
    salt = uuid.uuid4().hex
    decoded, chat = Dialects(exact.template).decode({key: json.dumps(fields[key]).encode() for key in fields}, kind)
    prefix = await exact.fingerprint(Caller(TenantId("acme"), salt), decoded, chat=chat)
    first, again = (_ask(kind, fields, salt) for _ in range(2))
    assert first.prompt_tokens == prefix.tokens
    assert prefix.hashes and _stored(events, prefix) == list(prefix.hashes)
    assert again.cached_tokens == prefix.hittable_blocks * BLOCK_SIZE


PATHS = {"chat": "chat/completions", "text": "completions", "messages": "messages", "responses": "responses"}


def _ask(kind: str, fields: dict[str, Any], salt: str) -> Usage:
    bound = {"max_output_tokens" if kind == "responses" else "max_tokens": 1}
    body = {"model": "tiny", "cache_salt": salt, **bound, **fields}
    answer = httpx.post(f"{URL}/v1/{PATHS[kind]}", json=body, timeout=60)
    assert answer.status_code == 200, answer.status_code
    return read_usage(answer.content)


def _body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "max_tokens": 1, **fields}


def _stored(events: zmq.Socket[bytes], prefix: ExactPrefix) -> list[int]:
    """Hashes of the prefix in the order the worker stored them; other traffic's are passed over."""
    awaited, stored = set(prefix.hashes), []
    while len(stored) < len(prefix.hashes):
        *_, payload = events.recv_multipart()
        for event in msgspec.msgpack.decode(payload)[1]:
            if event["type"] == "BlockStored":
                stored += [told for told in event["block_hashes"] if told in awaited]
    return stored

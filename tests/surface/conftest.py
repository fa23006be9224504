"""The router of `tests/router` on its sockets, and every endpoint's smallest request."""

from __future__ import annotations

import json
from typing import Any

from tests.router.conftest import other_worker, router, start_router, worker  # noqa: F401 - fixtures
from tests.router.scripted_worker import Script, answer_json, chunk, stream

REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"model": "m", "prompt": "hi"},
    "/v1/messages": {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]},
    "/v1/responses": {"model": "m", "input": "hi"},
    "/v1/embeddings": {"model": "m", "input": "hi"},
}

MESSAGES_USAGE = {
    "input_tokens": 6, "output_tokens": 3, "cache_creation_input_tokens": 30, "cache_read_input_tokens": 64,
}  # fmt: skip
RESPONSES_USAGE = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 32, "cached_tokens_per_turn": []},
    "output_tokens": 3,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 103,
}


def named(name: str, **fields: Any) -> bytes:
    data = json.dumps({"type": name, **fields}, separators=(",", ":"))
    return f"event: {name}\ndata: {data}\n\n".encode()


MESSAGE_START = named("message_start", message={"id": "c", "usage": {"input_tokens": 100, "output_tokens": 0}})
MESSAGE_TEXT = named("content_block_delta", delta={"type": "text_delta", "text": "hello"}, index=0)
MESSAGE_END = named("message_delta", delta={"stop_reason": "end_turn"}, usage=MESSAGES_USAGE)
MESSAGE_STOP = named("message_stop")

CREATED = named("response.created", response={"id": "resp_1", "usage": None}, sequence_number=0)
IN_PROGRESS = named("response.in_progress", response={"id": "resp_1", "usage": None}, sequence_number=1)
TEXT_DELTA = named("response.output_text.delta", delta="hello", sequence_number=2)
COMPLETED = named(
    "response.completed", response={"id": "resp_1", "usage": RESPONSES_USAGE, "user": None}, sequence_number=3
)

STREAMS: dict[str, tuple[bytes, ...]] = {
    "/v1/messages": (MESSAGE_START, MESSAGE_TEXT, MESSAGE_END, MESSAGE_STOP),
    "/v1/responses": (CREATED, IN_PROGRESS, TEXT_DELTA, COMPLETED),
}


def streaming(path: str) -> Script:
    return stream(*STREAMS[path])


def whole(body: Any) -> Script:
    return answer_json(body)


__all__ = ["chunk"]

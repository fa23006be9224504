"""Logs of OpenAI-compatible requests, one JSON object a line, to the trace format of Mooncake.

A line has the request's body and, where it is known, when it came and what was used:

    {"timestamp": 1735689600.5 | "2025-01-01T00:00:00.5Z", "request": {"model": …, "messages": […]},
     "response": {"usage": {"prompt_tokens": 912, "completion_tokens": 80}}}

`body` for `request`, `created` or `time` for `timestamp`, and `usage` beside them are understood too. Out come
`timestamp` (ms since the first), `input_length`, `output_length` and `hash_ids`: one number for each BLOCK_BYTES of
text, equal exactly where prefixes are equal. They are keyed with dice of this import alone, so that nobody can look up
a text in the result; the text itself is not kept.

Lengths are the text's (4 bytes a token), so that they fit their hashes; output lengths are the usage's.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from simulator.replay import ConversationRequest

BLOCK_TOKENS = 512
BYTES_PER_TOKEN = 4
BLOCK_BYTES = BLOCK_TOKENS * BYTES_PER_TOKEN
OUTPUT_TOKENS_UNKNOWN = 200
"""Where a line says nothing of it: about what conversations have in the mean."""
ID_MASK = (1 << 53) - 1
"""Ids stay exact in every JSON reader."""


@dataclass(slots=True)
class Counts:
    """What became of the lines."""

    taken: int = 0
    without_usage: int = 0
    without_time: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """Reason → lines."""


def read_logs(lines: Iterable[bytes], counts: Counts, *, key: bytes = b"") -> Iterator[ConversationRequest]:
    """Requests in the lines' order. What cannot be read is counted by its reason and passed over.

    A line without a time comes with the one before it.
    """
    key = key or secrets.token_bytes(32)
    first_s: float | None = None
    last_s = 0.0
    for line in lines:
        if not line.strip():
            continue
        try:
            record = _record(line)
            text = _text(record)
        except ValueError as error:
            counts.refused[str(error)[:120]] += 1
            continue
        at_s = _at(record)
        counts.without_time += at_s is None
        last_s = max(last_s, last_s if at_s is None else at_s)
        first_s = last_s if first_s is None else first_s
        counts.taken += 1
        yield ConversationRequest(
            timestamp=round((last_s - first_s) * 1_000),
            input_length=max(1, len(text) // BYTES_PER_TOKEN),
            output_length=_output_tokens(record, counts),
            hash_ids=_hash_ids(text, key),
        )


Record = dict[str, Any]
"""A line: JSON of any shape."""


def _record(line: bytes) -> Record:
    try:
        record = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError("not a line of JSON") from error
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    return record


def _text(record: Record) -> bytes:
    """Tools, then role and content of every message, each begun by a byte that no UTF-8 has; or the prompt."""
    body = record.get("request") or record.get("body")
    if not isinstance(body, dict):
        raise ValueError("without request")
    messages, prompt = body.get("messages"), body.get("prompt")
    if isinstance(messages, list) and messages:
        tools = b"\xfc" + _stable(body["tools"]) if body.get("tools") else b""
        return tools + b"".join(_message(each) for each in messages)
    if isinstance(prompt, str) and prompt:
        return prompt.encode("utf-8", "surrogatepass")
    raise ValueError("neither messages nor a prompt of text")


def _message(message: object) -> bytes:
    if not isinstance(message, dict):
        raise ValueError("a message that is no object")
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(each["text"] for each in content if isinstance(each, dict) and "text" in each)
    calls = _stable(message["tool_calls"]) if message.get("tool_calls") else b""
    said = str(content or "").encode("utf-8", "surrogatepass")
    return b"\xff" + str(message.get("role", "")).encode("utf-8", "surrogatepass") + b"\xfe" + said + calls


def _stable(value: object) -> bytes:
    """One spelling for equal JSON."""
    return msgspec.json.encode(value, order="sorted")


def _at(record: Record) -> float | None:
    """Unix seconds."""
    for name in ("timestamp", "created", "time"):
        value = record.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value) / 1_000 if value > 1e11 else float(value)
        if isinstance(value, str):
            try:
                at = datetime.fromisoformat(value)
            except ValueError:
                continue
            return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    return None


def _output_tokens(record: Record, counts: Counts) -> int:
    response = record.get("response")
    usage = record.get("usage") or (response.get("usage") if isinstance(response, dict) else None)
    tokens = usage.get("completion_tokens", usage.get("output_tokens")) if isinstance(usage, dict) else None
    if not isinstance(tokens, int) or tokens < 0:
        counts.without_usage += 1
        return OUTPUT_TOKENS_UNKNOWN
    return max(1, tokens)


def _hash_ids(text: bytes, key: bytes) -> list[int]:
    """One id a block, the last one partial, each chained to those before it."""
    ids, before = [], b""
    for at in range(0, len(text), BLOCK_BYTES):
        before = hashlib.blake2b(before + text[at : at + BLOCK_BYTES], key=key, digest_size=16).digest()
        ids.append(int.from_bytes(before[:8]) & ID_MASK)
    return ids

"""The usage block of a worker's answer, read with suspicion: a worker may omit it, send null, or lie."""

from __future__ import annotations

import re
from typing import NamedTuple

TAIL_BYTES = 4096
"""vLLM writes `usage` behind the choices; so much of the answer's end is enough to find it."""
TOKENS_MAX = 100_000_000
"""A larger count is not a count."""

_PROMPT = re.compile(rb'"prompt_tokens":\s*(\d{1,12})\b')
_COMPLETION = re.compile(rb'"completion_tokens":\s*(\d{1,12})\b')
_CACHED = re.compile(rb'"cached_tokens":\s*(\d{1,12})\b')


class Usage(NamedTuple):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    """None = not said, null or negative: unknown, never 0. More than the prompt has is cut to the prompt."""


UNKNOWN = Usage()


def read_usage(data: bytes) -> Usage:
    """Usage from bytes that hold the end of an answer, or its usage event.

    The key with its quotes cannot stand inside a JSON string (quotes are escaped there), so the last one is real.
    """
    at = data.rfind(b'"usage":')
    if at < 0:
        return UNKNOWN
    prompt = _number(_PROMPT, data, at)
    completion = _number(_COMPLETION, data, at)
    cached = _number(_CACHED, data, at)
    if cached is not None and prompt is not None:
        cached = min(cached, prompt)
    elif prompt is None:
        cached = None
    return Usage(prompt, completion, cached)


def _number(pattern: re.Pattern[bytes], data: bytes, at: int) -> int | None:
    found = pattern.search(data, at)
    if found is None:
        return None
    value = int(found[1])
    if pattern is _CACHED:
        return value
    return value if value <= TOKENS_MAX else None

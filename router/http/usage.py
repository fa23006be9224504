"""The usage block of a worker's answer, read with suspicion: a worker may omit it, send null, or lie.

Three spellings: OpenAI's (`prompt_tokens`, `completion_tokens`, `cached_tokens`), that of responses (`input_tokens`,
`output_tokens`, `cached_tokens`), and Anthropic's, whose `input_tokens` leave out what the cache gave or took:
prompt = input_tokens + cache_read_input_tokens + cache_creation_input_tokens.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

TAIL_BYTES: Final = 4096
"""vLLM writes `usage` behind the choices; so much of the answer's end is enough to find it."""
TOKENS_MAX: Final = 100_000_000
"""A larger count is not a count."""

_COUNT: Final = re.compile(
    rb'"(prompt_tokens|completion_tokens|cached_tokens|input_tokens|output_tokens|cache_read_input_tokens'
    rb'|cache_creation_input_tokens)":\s*(\d{1,12})\b'
)
"""A count that is null, negative or no number matches nothing."""


_VLLM: Final = re.compile(
    rb'"usage":\{"prompt_tokens":(\d{1,8}),"total_tokens":\d{1,9},"completion_tokens":(\d{1,8})'
    rb',"prompt_tokens_details":\{"cached_tokens":(\d{1,8})\}'
)
"""The block as vLLM writes it: read in one step. Any other is read name by name."""


class Usage(NamedTuple):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    """None = not said, null or negative: unknown, never 0. More than the prompt has is cut to the prompt."""


UNKNOWN: Final = Usage()


def read_usage(data: bytes) -> Usage:
    """Usage from bytes that hold the end of an answer, or its usage event.

    The key with its quotes cannot stand inside a JSON string (quotes are escaped there), so the last one is real.
    """
    at = data.rfind(b'"usage":')
    if at < 0:
        return UNKNOWN
    usual = _VLLM.match(data, at)
    if usual is not None:
        prompt, cached = int(usual[1]), int(usual[3])
        return Usage(prompt, int(usual[2]), cached if cached < prompt else prompt)
    counts: dict[bytes, int] = {}
    for name, digits in _COUNT.findall(data, at):
        counts.setdefault(name, int(digits))
    if b"input_tokens" in counts:
        return _of_input(counts)
    named = _count(counts.get(b"prompt_tokens"))
    return Usage(named, _count(counts.get(b"completion_tokens")), _cached(counts.get(b"cached_tokens"), named))


def _of_input(counts: dict[bytes, int]) -> Usage:
    prompt: int | None = counts[b"input_tokens"]
    cached = counts.get(b"cached_tokens")
    if cached is None:
        read, created = counts.get(b"cache_read_input_tokens"), counts.get(b"cache_creation_input_tokens")
        prompt = counts[b"input_tokens"] + (read or 0) + (created or 0)
        cached = read
    prompt = _count(prompt)
    return Usage(prompt, _count(counts.get(b"output_tokens")), _cached(cached, prompt))


def _count(value: int | None) -> int | None:
    return value if value is not None and value <= TOKENS_MAX else None


def _cached(value: int | None, prompt: int | None) -> int | None:
    return min(value, prompt) if value is not None and prompt is not None else None

"""Recorded traces as chat requests: the trace's lengths, times and block sharing, with generated text.

Every request of the trace becomes messages whose shared prefixes follow the block ids. `scale` shortens everything
alike: a 64-token block at scale 1/16 is 4 tokens of text. A replay that reaches the trace's end starts over with
another `generation`, whose text shares nothing with the last one's sessions.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from simulator.prose import block_text, seed_of
from simulator.tokens import BYTES_PER_TOKEN

TRACES = Path(__file__).with_name("traces")
CONVERSATION_LATER = TRACES / "mooncake_conversation_later.jsonl.gz"
"""The conversation trace behind its first 20 minutes."""
WEKA_BLOCK_TOKENS = 64
CONVERSATION_BLOCK_TOKENS = 512

WEKA_SCALE = 1 / 16
"""90,000 tokens a request on average become 5,700: 23 KB of text."""
CONVERSATION_SCALE = 1 / 8
"""12,000 tokens a request on average become 1,500."""

THINK_S_MAX = 60.0
"""People who left for lunch would hold a session slot for hours: one think time in six is longer and is cut."""
THINK_S_UNKNOWN = 10.0
"""The trace's median, for the requests that record none."""


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """One request ready to send."""

    session: str
    """Empty where the trace knows no sessions."""
    messages: list[dict[str, str]]
    max_tokens: int


class WekaTurn(msgspec.Struct):
    session: int
    turn: int
    input_length: int
    output_length: int
    tool_tokens: int
    system_tokens: int
    hash_runs: list[tuple[int, int]]
    think_s: float | None = None

    @property
    def pause_s(self) -> float:
        """Think time before the request, in trace seconds."""
        return THINK_S_UNKNOWN if self.think_s is None else min(self.think_s, THINK_S_MAX)


class ConversationRequest(msgspec.Struct):
    timestamp: int
    """Milliseconds since the trace began."""
    input_length: int
    output_length: int
    hash_ids: list[int]

    @property
    def conversation(self) -> int:
        """What requests of one conversation share beyond the common block 0."""
        return self.hash_ids[1] if len(self.hash_ids) > 1 else self.hash_ids[0]


def load_weka(path: Path = TRACES / "weka_agentic_coding.jsonl.gz") -> list[list[WekaTurn]]:
    """Sessions of turns, in the trace's order. Raises OSError or msgspec.DecodeError."""
    sessions: dict[int, list[WekaTurn]] = {}
    for turn in _rows(path, WekaTurn):
        sessions.setdefault(turn.session, []).append(turn)
    return list(sessions.values())


def load_conversation(path: Path = TRACES / "mooncake_conversation.jsonl.gz") -> list[ConversationRequest]:
    return list(_rows(path, ConversationRequest))


def weka_chat(turn: WekaTurn, *, generation: int, seed: int, scale: float = WEKA_SCALE) -> ChatTurn:
    """System message = tools and system prompt (equal text for equal lengths); user message = the growing rest."""
    size = bytes_per_block(WEKA_BLOCK_TOKENS, scale)
    ids = _expand(turn.hash_runs)
    tools = min(turn.tool_tokens // WEKA_BLOCK_TOKENS, len(ids))
    head = min((turn.tool_tokens + turn.system_tokens) // WEKA_BLOCK_TOKENS, len(ids))
    places = np.arange(head, dtype=np.uint64)
    session = f"weka-{seed}-{generation}-{turn.session}"
    tools_seed = seed_of("tools", seed, turn.tool_tokens)
    system_seed = seed_of("system", seed, turn.tool_tokens, turn.system_tokens)
    system = block_text(tools_seed, places[:tools], bytes_per_block=size)
    system += block_text(system_seed, places[tools:], bytes_per_block=size)
    user = block_text(seed_of(session), ids[head:], bytes_per_block=size)
    return ChatTurn(session, _messages(system, user), _output_tokens(turn.output_length, scale))


def conversation_chat(
    request: ConversationRequest, *, generation: int, seed: int, scale: float = CONVERSATION_SCALE
) -> ChatTurn:
    """System message = block 0, which every request shares; user message = the rest."""
    size = bytes_per_block(CONVERSATION_BLOCK_TOKENS, scale)
    ids = np.array(request.hash_ids, dtype=np.uint64)
    system = block_text(seed_of("conversation", seed), ids[:1], bytes_per_block=size)
    user = block_text(seed_of("conversation", seed, generation), ids[1:], bytes_per_block=size)
    return ChatTurn("", _messages(system, user), _output_tokens(request.output_length, scale))


def bytes_per_block(block_tokens: int, scale: float) -> int:
    """Text bytes that stand for one block of the trace; whole tokens, at least one."""
    return max(1, round(block_tokens * scale)) * BYTES_PER_TOKEN


def _messages(system: str, user: str) -> list[dict[str, str]]:
    """A request of the head alone still needs something to answer."""
    return [{"role": "system", "content": system}, {"role": "user", "content": user or "go on"}]


def _output_tokens(output_length: int, scale: float) -> int:
    return max(1, round(output_length * scale))


def _expand(runs: list[tuple[int, int]]) -> NDArray[np.uint64]:
    if not runs:
        return np.zeros(0, dtype=np.uint64)
    return np.concatenate([np.arange(first, first + count, dtype=np.uint64) for first, count in runs])


def _rows[Row: msgspec.Struct](path: Path, kind: type[Row]) -> Iterator[Row]:
    decode = msgspec.json.Decoder(kind).decode
    with gzip.open(path, "rb") as lines:
        for line in lines:
            yield decode(line)

"""The workload of the quality measure: conversations that share long system prompts, and the most a cache can give.

200 system prompts of 16,000 characters, drawn by Zipf's law with exponent 1; 800 conversations of one to six turns. A
request repeats all turns before it. The load generator reads them from a file, turns of one conversation in order.
"""

from __future__ import annotations

import json
import random
import struct
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CONVERSATIONS = 800
SYSTEM_PROMPTS = 200
SYSTEM_CHARS = 16_000
TURNS = (1, 1, 2, 3, 4, 6)
"""Equally likely."""
USER_CHARS, ANSWER_CHARS = (100, 700), (200, 900)
VOCABULARY_WORDS = 3000
SEED = 1
BLOCK_CHARS = 64
"""Of the mock workers' caches."""


@dataclass(frozen=True)
class Request:
    conversation: int
    system_prompt: int
    body: bytes
    blocks: tuple[int, ...]
    """Chained: equal when everything up to the block's end is."""
    chars: int


def make_workload() -> list[Request]:
    draw = random.Random(SEED)
    words = ["".join(draw.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(draw.randint(2, 9)))
             for _ in range(VOCABULARY_WORDS)]  # fmt: skip
    systems = [_text(words, SYSTEM_CHARS, random.Random(1000 + number)) for number in range(SYSTEM_PROMPTS)]
    weights = [1 / (rank + 1) for rank in range(SYSTEM_PROMPTS)]
    requests = []
    for conversation in range(CONVERSATIONS):
        chosen = draw.choices(range(SYSTEM_PROMPTS), weights)[0]
        messages = [{"role": "system", "content": systems[chosen]}]
        for _ in range(draw.choice(TURNS)):
            messages.append({"role": "user", "content": _text(words, draw.randint(*USER_CHARS), draw)})
            requests.append(_request(conversation, chosen, messages))
            messages.append({"role": "assistant", "content": _text(words, draw.randint(*ANSWER_CHARS), draw)})
    return requests


def write_workload(requests: list[Request], path: Path) -> None:
    """Records of (system prompt << 20 | conversation, length, body), as `lg -f` reads them."""
    with path.open("wb") as file:
        for request in requests:
            session = request.system_prompt << 20 | request.conversation
            file.write(struct.pack("<II", session, len(request.body)) + request.body)


def distinct_blocks(requests: list[Request]) -> int:
    return len({block for request in requests for block in request.blocks})


def hit_bound(requests: list[Request], *, cache_blocks: int, connections: int) -> float:
    """Share of characters that one cache of so many blocks would hit, served in the generator's order.

    No set of workers' caches of the same size in all can hit more by as plain a rule as theirs (least recently used),
    but for the order in which requests really end.
    """
    cache: OrderedDict[int, None] = OrderedDict()
    hit = 0
    for request in _in_order(requests, connections):
        for block in request.blocks:
            if block not in cache:
                break
            hit += BLOCK_CHARS
        # From the tail to the head: a chain loses its tail first, as the workers' caches do.
        for block in reversed(request.blocks):
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > cache_blocks:
            cache.popitem(last=False)
    return hit / sum(request.chars for request in requests)


def _in_order(requests: list[Request], connections: int) -> Iterator[Request]:
    """Each connection plays a conversation to its end, then takes the next; all requests take equally long."""
    conversations: dict[int, list[Request]] = {}
    for request in requests:
        conversations.setdefault(request.conversation, []).append(request)
    waiting = iter(conversations.values())
    playing: list[Iterator[Request]] = [iter(turns) for _, turns in zip(range(connections), waiting, strict=False)]
    while playing:
        still = []
        for turns in playing:
            request = next(turns, None)
            while request is None:
                following = next(waiting, None)
                if following is None:
                    break
                turns = iter(following)
                request = next(turns, None)
            if request is not None:
                yield request
                still.append(turns)
        playing = still


def _request(conversation: int, system_prompt: int, messages: list[dict[str, str]]) -> Request:
    fields = {"model": "m", "user": f"s{conversation}", "messages": messages, "max_tokens": 100}
    body = json.dumps(fields, separators=(",", ":")).encode()
    text = "".join(message["content"] for message in messages)
    return Request(conversation, system_prompt, body, _chained(text), len(text))


def _chained(text: str) -> tuple[int, ...]:
    found, last = [], 0
    for start in range(0, len(text) - BLOCK_CHARS + 1, BLOCK_CHARS):
        last = hash((last, text[start : start + BLOCK_CHARS]))
        found.append(last)
    return tuple(found)


def _text(words: list[str], length: int, draw: random.Random) -> str:
    picked: list[str] = []
    size = 0
    while size < length:
        picked.append(draw.choice(words))
        size += len(picked[-1]) + 1
    return " ".join(picked)[:length]

"""Text to token ids and back: a deterministic stand-in for a tokenizer and a chat template.

A token is BYTES_PER_TOKEN bytes of UTF-8, counted from the start of its segment. So equal text prefixes give equal
token prefixes, and 64 KB cost well under a millisecond. About 4 bytes a token is what byte-pair encodings reach on
English text and code. Segments (one chat message each) tokenise independently, as special tokens make them do in
real templates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

BYTES_PER_TOKEN = 4
VOCABULARY_SIZE = 128_256
"""Ids 0 to 15 are special tokens, the others stand for text. The size is Llama 3's."""

SPECIAL_COUNT = 16
TURN_END = 1
TOOLS_START = 2
ROLE_START = {"system": 4, "developer": 4, "user": 5, "assistant": 6, "tool": 7, "function": 7}

_SPREAD = np.uint64(0x9E3779B1)
"""2**32 divided by the golden ratio: multiplying by it modulo 2**32 permutes the units (Knuth, TAOCP vol. 3, 6.4)."""
_LOW_32_BITS = np.uint64(0xFFFF_FFFF)
_PADDING = b"\xff"
"""Never a byte of UTF-8, so a padded tail cannot equal a whole unit."""


def tokenize(text: str) -> list[int]:
    """Token ids of one segment; [] for the empty text."""
    data = text.encode("utf-8", "surrogatepass")
    short = -len(data) % BYTES_PER_TOKEN
    units = np.frombuffer(data + _PADDING * short, dtype="<u4").astype(np.uint64)
    spread = (units * _SPREAD) & _LOW_32_BITS
    ids: list[int] = (SPECIAL_COUNT + (spread * np.uint64(VOCABULARY_SIZE - SPECIAL_COUNT) >> np.uint64(32))).tolist()
    return ids


def render_chat(messages: Iterable[tuple[str, str]], *, tools: str = "") -> list[int]:
    """Token ids of (role, text) messages behind the tools' definitions, up to where the assistant begins to speak."""
    ids: list[int] = [TOOLS_START, *tokenize(tools), TURN_END] if tools else []
    for role, text in messages:
        ids.append(ROLE_START[role])
        ids += tokenize(text)
        ids.append(TURN_END)
    ids.append(ROLE_START["assistant"])
    return ids


_WORDS = [f"{a}{v}{b} " for a in "bdfgklmnprstvzhj" for v in "aeio" for b in "nrst"]
"""256 pronounceable words of exactly one token each, in which the simulated model speaks."""
_WORD_IDS = [tokenize(word)[0] for word in _WORDS]
_WORD_OF = dict(zip(_WORD_IDS, _WORDS, strict=True))
_STRIDE = 6_364_136_223_846_793_005
"""Knuth's MMIX multiplier; the word number is the top byte of a 64-bit linear congruential sequence."""


def spoken_token(seed: int, position: int) -> int:
    """The token that a model answers at `position`: like sampling at temperature 0, the same for the same seed."""
    state = ((seed + position) * _STRIDE + 1_442_695_040_888_963_407) & 0xFFFF_FFFF_FFFF_FFFF
    return _WORD_IDS[(state ^ (state >> 29)) >> 56]


def spoken_text(tokens: Sequence[int]) -> str:
    """Text of spoken tokens. It tokenises back to the same ids when it starts a segment."""
    return "".join(_WORD_OF[token] for token in tokens)

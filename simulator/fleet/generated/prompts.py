"""Prompts as rows of named segments, and the block names that follow from them.

A block's name stands for everything up to its end. With K_k the key of all segments before segment k, a block that ends
inside segment k is named by (K_k, the segment, the place of its end): two prompts share exactly the blocks that lie in
their common segments, wherever block boundaries fall. Cost: O(blocks), by numpy within a segment.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from simulator.fleet.names import BlockName, key_of, named, places
from simulator.fleet.workload import BLOCK_TOKENS, TEXT_BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class Segment:
    """A text that is the same wherever its name is."""

    name: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Prompt:
    segments: tuple[Segment, ...]
    output_tokens: int
    affinity: int
    """What its client would send as session id."""
    answer: str
    """Name of the answer's text: the next turn repeats it as a segment."""
    pause_s: float = 0.0
    """From the end of the answer before it to this prompt; of a session's first, 0."""

    @property
    def tokens(self) -> int:
        return sum(segment.tokens for segment in self.segments)

    def chain(self) -> list[BlockName]:
        """Whole KV blocks of prompt and answer."""
        return block_names((*self.segments, Segment(self.answer, self.output_tokens)), BLOCK_TOKENS)

    def text_hashes(self) -> list[int]:
        """Whole text blocks of the prompt."""
        return list(block_names(self.segments, TEXT_BLOCK_TOKENS))


def block_names(segments: Iterable[Segment], size: int) -> list[BlockName]:
    """Names of the whole blocks of `size` tokens."""
    before, at, found = "", 0, []
    for segment in segments:
        end = at + segment.tokens
        found.append(_names_within(before, segment.name, at // size, end // size, size))
        before, at = _joined(before, segment.name, segment.tokens), end
    names: list[BlockName] = np.concatenate(found).tolist() if found else []
    return names


@lru_cache(maxsize=4_096)
def _names_within(before: str, name: str, first: int, after: int, size: int) -> np.ndarray:
    return named(key_of(before, name, size), places(first, after))


@lru_cache(maxsize=16_384)
def _joined(before: str, name: str, tokens: int) -> str:
    return f"{key_of(before, name, tokens):x}"

"""Where two versions of a template part, in tokens and blocks, and what a roll-out of the later one costs in cache.

A worker reuses whole blocks from the front. With c common tokens, blocks of b and a prompt of n tokens, the first
request of the later version finds

    min(c ÷ b, (n − 1) ÷ b) × b     cached tokens (whole blocks; the last token is always computed)

and everything that was cached of the earlier version behind block c ÷ b is of no use to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.prompts.lints import stable_prefix
from controlplane.prompts.rendering import assembled
from controlplane.prompts.segments import Segment
from controlplane.prompts.tokens import TokenCounter, common_tokens


@dataclass(frozen=True, slots=True)
class Divergence:
    common_tokens: int
    first_divergent_block: int | None
    """Index of the first block that differs; None when the shorter text's whole blocks are all in the longer."""
    segment: str
    """Of the later text, where the first differing character is; "" when there is none, or it is not known."""
    position: int | None
    """Of that character in the segment."""
    old_tokens: int
    new_tokens: int
    cached_tokens_kept: int
    """That the first request of the later version finds cached of the earlier."""
    cached_tokens_lost: int
    """Of each cached copy of the earlier version's text: blocks that the later version cannot use."""
    block_size: int
    exact: bool


def divergence(old: str, new: str, counter: TokenCounter) -> Divergence:
    """Of two prompts."""
    size = counter.block_size
    old_ids, new_ids = counter.ids(old), counter.ids(new)
    common = common_tokens(old_ids, new_ids)
    blocks = common // size
    shorter = min(len(old_ids), len(new_ids)) // size
    usable = max(len(new_ids) - 1, 0) // size
    return Divergence(
        common_tokens=common,
        first_divergent_block=blocks if blocks < shorter else None,
        segment="",
        position=None,
        old_tokens=len(old_ids),
        new_tokens=len(new_ids),
        cached_tokens_kept=min(blocks, usable) * size,
        cached_tokens_lost=(len(old_ids) // size - blocks) * size,
        block_size=size,
        exact=counter.exact,
    )


def compare_versions(old: Sequence[Segment], new: Sequence[Segment], counter: TokenCounter) -> Divergence:
    """Of what all requests of each version share: the static parts up to their first placeholder."""
    left, right = stable_prefix(old), stable_prefix(new)
    found = divergence(left, right, counter)
    at = next((index for index, (one, two) in enumerate(zip(left, right, strict=False)) if one != two), None)
    if at is None and len(left) != len(right):
        at = min(len(left), len(right))
    segment, position = _place(new, at)
    return Divergence(
        common_tokens=found.common_tokens,
        first_divergent_block=found.first_divergent_block,
        segment=segment,
        position=position,
        old_tokens=found.old_tokens,
        new_tokens=found.new_tokens,
        cached_tokens_kept=found.common_tokens // counter.block_size * counter.block_size,
        cached_tokens_lost=found.cached_tokens_lost,
        block_size=found.block_size,
        exact=found.exact,
    )


def _place(segments: Sequence[Segment], at: int | None) -> tuple[str, int | None]:
    if at is None:
        return "", None
    for part in reversed(assembled(segments).parts):
        if at >= part.start:
            return part.name, at - part.start
    return "", None

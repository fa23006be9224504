"""Block names of recorded prompts, from their anchors.

A block is named by the first anchor that reaches its end, and by its place: prompts that agree up to there agree in it.
Behind a prompt's last anchor, and in its answer, the names are those of the request that goes on from it, where the
recording has one; elsewhere they are nobody else's. Between two anchors, at most a sixteenth of the way, agreement that
ends inside is lost: simulated hits fall short by half of that in the mean.

Anchors count text, caches count tokens: the bytes a token takes are the mean of the namespace, so that equal heads of
two prompts fall into equal blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from router.contract.recorded import (
    ANCHORS_MAX,
    TEXT_BLOCK_BYTES,
    Broken,
    RecordedRequest,
    anchor_positions,
)
from simulator.fleet.names import BlockName, Names, key_of, named, places
from simulator.fleet.workload import BYTES_PER_TOKEN, TEXT_BLOCK_TOKENS

Indices = NDArray[np.intp]

_POSITIONS: Final = np.array(anchor_positions(1 << 20)[:ANCHORS_MAX], dtype=np.float64)
_MASK: Final = (1 << 64) - 1
_OWN: Final = 7
"""A purpose of `mixed`: what nobody shares."""
CLOCK_S: Final = 0.05
"""Two times of a router are as exact."""
BYTES_PER_TOKEN_MIN, BYTES_PER_TOKEN_MAX = 0.5, 64.0


class Prompt:
    """A recorded request with what is known of its surroundings."""

    __slots__ = ("after_s", "anchors", "before", "following", "mended_tokens", "number", "recorded", "unit")

    def __init__(self, number: int, recorded: RecordedRequest) -> None:
        self.number: Final = number
        self.recorded: Final = recorded
        self.anchors: Final[Names] = np.frombuffer(recorded.anchors, dtype=">u8").astype(np.uint64)
        self.unit: Final = int.from_bytes(recorded.unit) if recorded.unit else int(key_of("alone", number))
        self.following: Prompt | None = None
        """The next request that goes on from this one and its answer."""
        self.before: Prompt | None = None
        """The one whose answer its client had when it sent this one."""
        self.after_s = 0.0
        """Since that answer ended."""
        self.mended_tokens = 0
        """Of the shared head that it would have without the changing text in front; 0 = nothing changes there."""


class Grain:
    """For one namespace: which anchor names which piece of a prompt, as fine as both kinds of blocks need it."""

    def __init__(self, bytes_per_token: float, block_tokens: int, tokens_max: int) -> None:
        piece = min(block_tokens, TEXT_BLOCK_TOKENS)
        count = tokens_max // piece + 1
        ends = np.floor(_POSITIONS * TEXT_BLOCK_BYTES / bytes_per_token)
        self._piece_tokens: Final = piece
        self._pieces_a_block: Final = block_tokens // piece
        self._pieces_a_text_block: Final = TEXT_BLOCK_TOKENS // piece
        self._bytes_per_token: Final = bytes_per_token
        self._anchor: Final[Indices] = np.searchsorted(ends, np.arange(1, count + 1) * piece)
        self._place: Final[Names] = named(key_of("place"), places(0, count))

    def names(self, prompt: Prompt, *, copy: int, mended: bool) -> tuple[list[BlockName], list[int]]:
        """(blocks of the prompt and its answer, text blocks of the prompt). Copies share a session's head alone.

        A block is named as its last piece is: who agrees in that agrees in all of the block.
        """
        recorded = prompt.recorded
        pieces = self._pieces(prompt, copy, mended)
        blocks, text_blocks = self._pieces_a_block, self._pieces_a_text_block
        text_pieces = recorded.prompt_tokens // TEXT_BLOCK_TOKENS * text_blocks
        return pieces[blocks - 1 :: blocks].tolist(), pieces[:text_pieces][text_blocks - 1 :: text_blocks].tolist()

    def _pieces(self, prompt: Prompt, copy: int, mended: bool) -> Names:
        recorded, place = prompt.recorded, self._place
        count = (recorded.prompt_tokens + max(1, recorded.output_tokens)) // self._piece_tokens
        pieces = place[:count] ^ np.uint64(mixed(prompt.number, copy, _OWN))
        if mended and prompt.mended_tokens:
            shared = min(count, prompt.mended_tokens // self._piece_tokens)
            pieces[:shared] = place[:shared] ^ key_of("mended", recorded.namespace, recorded.template)
            return pieces
        at = 0
        for source in (prompt, prompt.following):
            if source is not None:
                reach = min(count, int(self._anchor.searchsorted(len(source.anchors))))
                if reach > at:
                    pieces[at:reach] = source.anchors[self._anchor[at:reach]] ^ place[at:reach]
                    at = reach
        if copy:
            head = int(recorded.head_blocks * TEXT_BLOCK_BYTES / self._bytes_per_token) // self._piece_tokens
            pieces[head:] ^= np.uint64(mixed(copy, 0, _OWN))
        return pieces


def mixed(unit: int, seed: int, purpose: int) -> int:
    """SplitMix64's finaliser, as in `names.named`, for one number."""
    found = (unit ^ (seed * 0x9E3779B97F4A7C15 + purpose * 0xD1B54A32D192ED03)) & _MASK
    found = (found ^ (found >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    found = (found ^ (found >> 27)) * 0x94D049BB133111EB & _MASK
    return found ^ (found >> 31)


def prompts_of(requests: Sequence[RecordedRequest]) -> list[Prompt]:
    """With what follows each; `requests` by time."""
    prompts = [Prompt(number, request) for number, request in enumerate(requests)]
    holder: dict[tuple[int, int], Prompt] = {}
    for prompt in reversed(prompts):
        anchors = prompt.anchors
        if len(anchors) and len(anchors) > len(anchor_positions(prompt.recorded.head_blocks)):
            last = (len(anchors), int(anchors[-1]))
            later = holder.get(last)
            if later is not None and later.recorded.prompt_tokens >= _with_answer(prompt.recorded):
                prompt.following = later
                _lead(prompt, later)
        holder.update(((place, anchor), prompt) for place, anchor in enumerate(anchors.tolist(), 1))
    return prompts


def _lead(prompt: Prompt, later: Prompt) -> None:
    """The later one waits for the answer of the last request of its unit that had ended when it came."""
    duration_ms = prompt.recorded.duration_ms
    if later.before is None and duration_ms is not None and prompt.unit == later.unit:
        after_s = later.recorded.at - prompt.recorded.at - duration_ms / 1_000
        if after_s >= -CLOCK_S:
            later.before, later.after_s = prompt, max(0.0, after_s)


def _with_answer(request: RecordedRequest) -> int:
    return request.prompt_tokens + request.output_tokens


def bytes_per_token(requests: Sequence[RecordedRequest]) -> dict[str, float]:
    """Namespace → mean over its requests with text."""
    sums: dict[str, tuple[int, int]] = {}
    for request in requests:
        if request.text_bytes:
            text, tokens = sums.get(request.namespace, (0, 0))
            sums[request.namespace] = text + request.text_bytes, tokens + request.prompt_tokens
    found = {
        name: min(BYTES_PER_TOKEN_MAX, max(BYTES_PER_TOKEN_MIN, text / tokens)) for name, (text, tokens) in sums.items()
    }
    return {request.namespace: found.get(request.namespace, float(BYTES_PER_TOKEN)) for request in requests}


def mend(prompts: Sequence[Prompt], broken: Sequence[Broken], ratios: dict[str, float]) -> int:
    """Marks the prompts that changing text cuts off, and says how many they are.

    It is those of a broken namespace and template whose first anchor behind the change no other request has.
    """
    known = {(row.namespace, row.template): row for row in broken if row.lost_bytes > 0}
    if not known:
        return 0
    seen: dict[tuple[int, int], int] = {}
    found = []
    for prompt in prompts:
        row = known.get((prompt.recorded.namespace, prompt.recorded.template))
        if row is None:
            continue
        place = int(np.searchsorted(_POSITIONS * TEXT_BLOCK_BYTES, row.position_bytes, side="right"))
        if place < len(prompt.anchors):
            mark = (place, int(prompt.anchors[place]))
            seen[mark] = seen.get(mark, 0) + 1
            found.append((prompt, mark, row))
    alone = [(prompt, row) for prompt, mark, row in found if seen[mark] == 1]
    for prompt, row in alone:
        shared_bytes = row.position_bytes + row.lost_bytes
        ratio = ratios[prompt.recorded.namespace]
        prompt.mended_tokens = min(int(shared_bytes / ratio), prompt.recorded.prompt_tokens)
    return len(alone)

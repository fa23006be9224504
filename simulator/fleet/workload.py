"""What a fleet is asked: requests as lengths and block names, and when they come.

Workers cache blocks of BLOCK_TOKENS (the conversation trace's own grain), or of a finer one for recorded traffic. The
router's fingerprint is as fine as in production: one hash for 512 bytes of text, which is TEXT_BLOCK_TOKENS.

Answers enter the cache. Where a later request of the trace goes on behind this one, the answer's blocks carry that
request's names, because the traces record prompts only; elsewhere they are names of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from simulator.fleet.names import BlockName

BLOCK_TOKENS = 512
TEXT_BLOCK_TOKENS = 128
BYTES_PER_TOKEN = 4


@dataclass(slots=True, eq=False)
class Request:
    id: int
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    chain: list[BlockName]
    """Whole blocks of the prompt and, behind them, of the answer."""
    text_hashes: list[int]
    """Whole text blocks of the prompt, as the router sees them."""
    affinity: int
    """What a client would send as its session id: the session, or the conversation's second block."""
    block_tokens: int = BLOCK_TOKENS
    """Of a block of `chain`: the grain of the caches that are simulated."""
    tenant: int = 0
    """Whose salt is in its names (`salted.py`)."""

    @property
    def hittable_blocks(self) -> int:
        """A prompt is never fully cached: its last token is always computed."""
        return (self.prompt_tokens - 1) // self.block_tokens


class Workload(Protocol):
    """Where requests come from. `demand_s` is GPU seconds a request at an infinite cache (see `demand.py`)."""

    demand_s: float
    duration_s: float
    """Seconds over which requests arrive."""

    def first(self) -> list[Request]:
        """The requests known from the start, in any order."""
        ...

    def after(self, request: Request, finished_s: float) -> Request | None:
        """What its client sends after an answer; None when nothing follows or the time is over."""
        ...

"""What spreading a prefix over k workers would do, from what is known of it. Pure: no database, no clock.

The model, term by term (each is shown beside its figure):

    share       the k homes take equal parts: the router gives each request to the home with the fewest under way
    copies      further homes compute the shared head once: its tokens ÷ the worker's prefill rate
    memory      a copy takes head tokens ÷ block size blocks; bytes where the pool states the KV bytes of a token
    evictions   of a copy's blocks those beyond the free room of the worker, mean over the workers without the prefix
    queue       what the prefix's requests wait above the mean queue of the pool's workers is their own making: it
                falls in proportion to the part of its load that one home carries. Real queues fall faster than load: it
                is the least that is saved
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Room:
    """A worker's cache. None = unknown."""

    worker: str
    free_blocks: int | None
    holds: bool


@dataclass(frozen=True, slots=True)
class Known:
    """What the preview rests on. None = unknown, and so is what follows from it."""

    head_tokens: int
    block_size: int
    requests_per_s: float
    effective_workers: float
    """Workers over which it is spread at present, by concentration."""
    queue_ms: float | None
    """Mean queue of its requests."""
    pool_queue_ms: float | None
    """Mean queue of the pool's workers at the same time."""
    prefill_tokens_per_s: float | None
    kv_bytes_per_token: int | None
    rooms: Sequence[Room]
    """Of every ready worker of the pool."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The prefix on k workers."""

    homes: int
    share: float
    """Of its requests on each home, 0…1."""
    copies: int
    """Workers that must compute the head first."""
    blocks: int
    """Of all copies, those that exist included."""
    gib: float | None
    evicted_blocks: int | None
    copy_ms: float | None
    """Prefill of the further copies, once."""
    saved_queue_ms: float | None
    """A request."""
    saved_queue_s_per_h: float | None
    """Of all its requests, waiting time an hour."""


def spreads(known: Known, *, homes_max: int) -> list[Spread]:
    """From two workers to all of the pool, at most `homes_max`."""
    return [_spread(known, homes) for homes in range(2, min(len(known.rooms), homes_max) + 1)]


def _spread(known: Known, homes: int) -> Spread:
    held = sum(room.holds for room in known.rooms)
    copies = max(0, homes - max(1, held))
    head_blocks = known.head_tokens // known.block_size if known.block_size else 0
    saved_ms = _saved_queue_ms(known, homes)
    rate, size = known.prefill_tokens_per_s, known.kv_bytes_per_token
    return Spread(
        homes=homes,
        share=1.0 / homes,
        copies=copies,
        blocks=head_blocks * homes,
        gib=None if size is None else homes * known.head_tokens * size / GIB,
        evicted_blocks=_evicted(known, copies, head_blocks),
        copy_ms=None if not rate else copies * known.head_tokens / rate * 1000.0,
        saved_queue_ms=saved_ms,
        saved_queue_s_per_h=None if saved_ms is None else saved_ms * known.requests_per_s * 3.6,
    )


def _saved_queue_ms(known: Known, homes: int) -> float | None:
    if known.queue_ms is None or known.pool_queue_ms is None:
        return None
    own_ms = max(0.0, known.queue_ms - known.pool_queue_ms)
    return own_ms * max(0.0, 1.0 - known.effective_workers / homes)


def _evicted(known: Known, copies: int, head_blocks: int) -> int | None:
    """Of copies on workers that have none; None while no such worker's room is known."""
    if not copies:
        return 0
    lacking = [room.free_blocks for room in known.rooms if not room.holds and room.free_blocks is not None]
    if not lacking:
        return None
    return round(copies * sum(max(0, head_blocks - free) for free in lacking) / len(lacking))

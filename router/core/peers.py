"""Load that other routers put on the workers, as they publish it several times a second (≤ 250 ms).

A peer's figures count in full while they are fresh and fade out once it falls silent: its requests end without it
saying so. Requests that no router tells of are seen by the pollers alone, see `fleet.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from router.contract.ids import WorkerId

PEER_FRESH_S: Final = 2.0
"""Eight missed publications of 250 ms: until then silence is jitter."""
PEER_FADED_S: Final = 4.0
"""From here on a silent peer counts nothing; in between it fades linearly."""


@dataclass(frozen=True, slots=True)
class PeerLoad:
    """One router's load on one worker at a moment."""

    pending_prefill_tokens: float
    """Uncached prompt tokens before their first byte, less the predicted progress."""
    outstanding: int
    """Requests under way."""
    at: float
    """Unix seconds of the publisher."""


def weight(age_s: float) -> float:
    """How much a peer's figure of this age counts, 1 … 0."""
    if age_s <= PEER_FRESH_S:
        return 1.0
    return max(0.0, (PEER_FADED_S - age_s) / (PEER_FADED_S - PEER_FRESH_S))


class PeerLoads:
    """Sums by worker over all peers. `take` replaces everything; `sums` is O(peers × workers)."""

    def __init__(self) -> None:
        self._loads: list[tuple[WorkerId, PeerLoad]] = []
        self._next_fade_at = float("inf")

    def take(self, loads: Iterable[Mapping[WorkerId, PeerLoad]], *, now: float) -> None:
        """`loads`: each peer's load by worker. Figures from a clock ahead of ours count as taken now."""
        self._loads = [(worker, load) for peer in loads for worker, load in peer.items() if _counts(load, now)]

    def fading(self, now: float) -> bool:
        """Whether the sums have changed by age alone since they were last read."""
        return now >= self._next_fade_at

    def sums(self, *, now: float) -> dict[WorkerId, tuple[float, float]]:
        """(pending prefill tokens, outstanding requests) by worker."""
        found: dict[WorkerId, tuple[float, float]] = {}
        oldest = now
        for worker, load in self._loads:
            share = weight(now - load.at)
            tokens, requests = found.get(worker, (0.0, 0.0))
            found[worker] = (tokens + share * load.pending_prefill_tokens, requests + share * load.outstanding)
            oldest = min(oldest, load.at) if share else oldest
        # Read again when the oldest begins to fade, then each tenth of the way.
        step_s = (PEER_FADED_S - PEER_FRESH_S) / 10.0
        self._next_fade_at = max(oldest + PEER_FRESH_S, now) + step_s if found else float("inf")
        return {worker: sums for worker, sums in found.items() if sums != (0.0, 0.0)}


def _counts(load: PeerLoad, now: float) -> bool:
    return load.outstanding > 0 and weight(now - load.at) > 0

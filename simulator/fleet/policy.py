"""What a routing policy sees and what it is told. A policy is any of the rules in `baselines`, `peers`, `oracle`
and `tidemark`."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

from router.core.exact.event_stream import EventStream
from simulator.fleet.engine import FleetEngine, Sequence
from simulator.fleet.workload import Request


@dataclass(slots=True)
class Sample:
    """A worker's metrics at the last poll that arrived."""

    at: float
    waiting: int
    running: int
    kv_use: float
    """0…1, blocks held by running requests."""
    resident_blocks: int
    evictions_per_s: float


@dataclass(slots=True)
class WorkerView:
    """One worker from the router's side: its own ledger, immediate and exact, and the last sample."""

    index: int
    engine: FleetEngine
    """For policies that follow KV events (content of the cache, without delay: more than they have in practice), and
    for the oracle."""
    outstanding: int = 0
    pending_prefill_tokens: int = 0
    """Uncached tokens of the requests that wait for their first token, as of their arrival."""
    active_blocks: int = 0
    """Prompt and answer blocks of the requests under way."""
    sample: Sample | None = None
    """None before the first, and of a worker that died."""
    away: bool = False
    """It died and is not back."""

    def cached_blocks(self, request: Request) -> int:
        return self.engine.cache.longest_prefix(request.chain, request.hittable_blocks)


@dataclass(frozen=True, slots=True)
class Choice:
    worker: int
    spilled: bool = False
    """The policy's own affinity wanted another worker."""


class Policy:
    """One instance routes one run. Rules that keep state of their own override the hooks."""

    def choose(self, request: Request, workers: list[WorkerView], now: float) -> Choice:
        """One of the workers, which are those that are there, by its index in the fleet."""
        raise NotImplementedError

    def first_token(self, sequence: Sequence, now: float) -> None:
        """The first byte of the answer passed the router."""

    def finished(self, sequence: Sequence, now: float) -> None:
        """The answer ended."""

    def sampled(self, workers: list[WorkerView], now: float) -> None:
        """Samples of all workers arrived. `workers`: the whole fleet."""

    def followers(self) -> Many[Many[EventStream]]:
        """What follows the workers' KV events: by router, by worker."""
        return ()

    def left(self, worker: int, lost: Many[Sequence], now: float) -> None:
        """The worker died with these requests under way; they are sent again behind this call."""

    def returned(self, worker: int, now: float) -> None:
        """It is back, with an empty cache."""


def least(workers: list[WorkerView], turn: int) -> WorkerView:
    """The fewest requests under way; equals in turn."""
    fewest = min(worker.outstanding for worker in workers)
    idle = [worker for worker in workers if worker.outstanding == fewest]
    return idle[turn % len(idle)]

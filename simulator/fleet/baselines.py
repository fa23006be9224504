"""Rules without a product: in turn, by count, by two draws, by ring and watermark, by longest prefix."""

from __future__ import annotations

import random

from router.contract.ids import WorkerId
from router.core.ring import Ring
from simulator.fleet.policy import Choice, Policy, WorkerView, least
from simulator.fleet.workload import Request

VIRTUAL_NODES = 100
WATERMARK_HIGH, WATERMARK_LOW = 0.85, 0.65


class RoundRobin(Policy):
    def __init__(self) -> None:
        self._turn = -1

    def choose(self, request: Request, workers: list[WorkerView], now: float) -> Choice:
        self._turn += 1
        return Choice(workers[self._turn % len(workers)].index)


class LeastOutstanding(Policy):
    def __init__(self) -> None:
        self._turn = -1

    def choose(self, request: Request, workers: list[WorkerView], now: float) -> Choice:
        self._turn += 1
        return Choice(least(workers, self._turn).index)


class PowerOfTwo(Policy):
    """Two workers drawn at random, the one with fewer requests under way (Mitzenmacher, 2001)."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, request: Request, workers: list[WorkerView], now: float) -> Choice:
        one, other = self._rng.sample(workers, 2) if len(workers) > 1 else (workers[0], workers[0])
        return Choice((one if one.outstanding <= other.outstanding else other).index)


class RingWatermark(Policy):
    """Consistent hashing of the session with hysteresis on KV use: at 85 % a worker takes no new prefixes until 65 %.

    The rule the project's requirements start from (S0.3, S0.4). It is given the session or conversation itself as
    its key, because hashing the first block sends all of the conversation trace to one worker.
    """

    def __init__(self, workers: int) -> None:
        self._ring = Ring((WorkerId(str(index)) for index in range(workers)), virtual_nodes=VIRTUAL_NODES)
        self._workers = workers
        self._full: set[str] = set()

    def choose(self, request: Request, workers: list[WorkerView], now: float) -> Choice:
        there = {WorkerId(str(worker.index)): worker for worker in workers}
        home = self._ring.home(_spread(request.affinity), None if len(there) == self._workers else there.__contains__)
        assert home is not None
        if home not in self._full or 2 * there[home].cached_blocks(request) >= len(request.chain):
            return Choice(int(home))
        successor = self._ring.home(
            _spread(request.affinity), lambda worker: worker not in self._full and worker in there
        )
        return Choice(int(home if successor is None else successor), spilled=successor is not None)

    def sampled(self, workers: list[WorkerView], now: float) -> None:
        for worker in workers:
            use = worker.sample.kv_use if worker.sample else 0.0
            if use >= WATERMARK_HIGH:
                self._full.add(str(worker.index))
            elif use <= WATERMARK_LOW:
                self._full.discard(str(worker.index))


class LongestPrefix(Policy):
    """The worker that caches most of the prompt, whatever its load; equals by requests under way."""

    def __init__(self) -> None:
        self._turn = -1

    def choose(self, request: Request, workers: list[WorkerView], now: float) -> Choice:
        self._turn += 1
        cached = [worker.cached_blocks(request) for worker in workers]
        longest = max(cached)
        holders = [worker for worker, blocks in zip(workers, cached, strict=True) if blocks == longest]
        return Choice(least(holders, self._turn).index)


def _spread(affinity: int) -> int:
    """Session numbers are small and the ring wants all 64 bits used (Fibonacci hashing, Knuth vol. 3)."""
    return affinity * 0x9E3779B97F4A7C15 % 2**64

"""A pool that serves what the table decides: serial prefill, then decode beside it. Time is simulated."""

from __future__ import annotations

import heapq
import random
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from router.contract.ids import WorkerId
from router.core.model import Outcome, Reservation
from tests.core.scene import Scene, text_bytes

BLOCK_TOKENS = 128
"""512 bytes at 4 bytes a token."""


@dataclass
class Engine:
    """One worker: an LRU of blocks, a prefill queue at a fixed rate, and decodes of a fixed length."""

    capacity_blocks: int
    tokens_per_s: float
    free_at: float = 0.0
    cache: OrderedDict[int, None] = field(default_factory=OrderedDict)
    evicted: int = 0
    prefill_s: float = 0.0
    """Work done: uncached prefill."""

    def prefill(self, reservation: Reservation, now: float) -> tuple[float, int]:
        """(end of prefill, cached tokens)."""
        fingerprint = reservation.decision.request.fingerprint
        hashes = [] if fingerprint is None else fingerprint.hashes
        held = next((at for at, block in enumerate(hashes) if block not in self.cache), len(hashes))
        for block in hashes:
            self.cache[block] = None
            self.cache.move_to_end(block)
        while len(self.cache) > self.capacity_blocks:
            self.cache.popitem(last=False)
            self.evicted += 1
        tokens = max(1, text_bytes(reservation) // 4)
        cached = min(held * BLOCK_TOKENS, tokens - 1)
        took_s = (tokens - cached) / self.tokens_per_s
        self.prefill_s += took_s
        self.free_at = max(self.free_at, now) + took_s
        return self.free_at, cached


@dataclass
class Served:
    requests: Counter[WorkerId] = field(default_factory=Counter)
    ttft_s: list[float] = field(default_factory=list)
    engines: dict[WorkerId, Engine] = field(default_factory=dict)
    late_requests: Counter[WorkerId] = field(default_factory=Counter)
    """Of the second half of the run: after the router has learnt."""
    late_busy_s: dict[WorkerId, float] = field(default_factory=dict)
    """Prefill and decode time of the second half, decode as a share of a full batch."""

    def spread(self) -> float:
        """Greatest over mean load of a worker in the second half of the run."""
        return max(self.late_busy_s.values()) * len(self.engines) / sum(self.late_busy_s.values())


def serve_all(
    scene: Scene,
    prompts: list[bytes],
    *,
    requests_per_s: float,
    tokens_per_s: float = 10_000.0,
    decode_s: float = 2.0,
    batch: int = 16,
    capacity_tokens: int = 500_000,
    seed: int = 3,
) -> Served:
    """Open-loop Poisson arrivals of the prompts in order."""
    served = Served()
    for worker in scene.policy.workers:
        served.engines[worker] = Engine(capacity_tokens // BLOCK_TOKENS, tokens_per_s)
        served.late_busy_s[worker] = 0.0
    events: list[tuple[float, int, str, Reservation | None, int]] = []
    order = iter(range(10**9))
    for number, at in enumerate(_arrivals(scene.now, len(prompts), requests_per_s, seed)):
        heapq.heappush(events, (at, next(order), "arrive", None, number))
    while events:
        scene.now, _, what, reservation, number = heapq.heappop(events)
        if reservation is None:
            reservation = scene.start(prompts[number])
            worker = reservation.decision.worker
            before = served.engines[worker].prefill_s
            done_at, cached = served.engines[worker].prefill(reservation, scene.now)
            served.requests[worker] += 1
            served.ttft_s.append(done_at - scene.now)
            if number >= len(prompts) // 2:
                served.late_requests[worker] += 1
                served.late_busy_s[worker] += served.engines[worker].prefill_s - before + decode_s / batch
            heapq.heappush(events, (done_at, next(order), "first byte", reservation, cached))
        elif what == "first byte":
            scene.table.first_byte(reservation, now=scene.now)
            heapq.heappush(events, (scene.now + decode_s, next(order), "end", reservation, number))
        else:
            tokens = max(1, text_bytes(reservation) // 4)
            outcome = Outcome(True, prompt_tokens=tokens, completion_tokens=100, cached_tokens=number)
            scene.table.release(reservation, outcome, now=scene.now)
    return served


def _arrivals(start: float, count: int, per_s: float, seed: int) -> Iterator[float]:
    rng, at = random.Random(seed), start
    for _ in range(count):
        at += rng.expovariate(per_s)
        yield at

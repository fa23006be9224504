"""One run: a workload, a policy and N workers on a simulated clock.

Events in order of time: a request arrives and is routed at once; a worker's step ends; metrics are polled every
POLL_S and reach the router POLL_DELAY_S later. Network and router take no time. Everything ends DRAIN_S after the last
arrival: what has not finished is counted as unfinished.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence as Many
from enum import IntEnum

from simulator.fleet.engine import FleetEngine, Sequence
from simulator.fleet.hardware import GpuProfile
from simulator.fleet.measure import TTFT_GOOD_S, Measured, RunResult, summarise
from simulator.fleet.policy import Policy, Sample, WorkerView
from simulator.fleet.workload import BLOCK_TOKENS, Request, Workload

POLL_S = 2.0
POLL_DELAY_S = 0.3
"""From a worker's metrics to the router's table: scrape, store, next read of the live channel."""
DRAIN_S = 60.0


class _Kind(IntEnum):
    STEP = 0
    ARRIVAL = 1
    POLL = 2
    SAMPLES = 3


class FleetRun:
    def __init__(
        self,
        workload: Workload,
        policy: Policy,
        profile: GpuProfile,
        *,
        workers: int,
        good_s: float = TTFT_GOOD_S,
        block_tokens: int = BLOCK_TOKENS,
    ) -> None:
        self._good_s = good_s
        self._workload = workload
        self._policy = policy
        self._workers = [WorkerView(index, FleetEngine(profile, block_tokens=block_tokens)) for index in range(workers)]
        self._events: list[tuple[float, int, int, object]] = []
        self._order = itertools.count()
        self._step_at = [math.inf] * workers
        self._evictions_before = [0] * workers
        self._measured = Measured()

    def run(self) -> RunResult:
        for request in self._workload.first():
            self._later(request.arrival_s, _Kind.ARRIVAL, request)
        self._later(POLL_S, _Kind.POLL, None)
        end_s = self._workload.duration_s + DRAIN_S
        while self._events and self._events[0][0] <= end_s:
            now, kind, _, subject = heapq.heappop(self._events)
            self._handle(kind, subject, now)
        return summarise(self._measured, self._workers, self._workload, end_s, good_s=self._good_s)

    def _later(self, at: float, kind: _Kind, subject: object) -> None:
        heapq.heappush(self._events, (at, kind, next(self._order), subject))

    def _handle(self, kind: int, subject: object, now: float) -> None:
        if kind == _Kind.STEP:
            assert isinstance(subject, WorkerView)
            self._end_step(subject, now)
        elif kind == _Kind.ARRIVAL:
            assert isinstance(subject, Request)
            self._route(subject, now)
        elif kind == _Kind.POLL:
            samples = [self._sample(worker, now) for worker in self._workers]
            self._later(now + POLL_DELAY_S, _Kind.SAMPLES, samples)
            self._later(now + POLL_S, _Kind.POLL, None)
        else:
            assert isinstance(subject, list)
            self._deliver(subject, now)

    def _route(self, request: Request, now: float) -> None:
        choice = self._policy.choose(request, self._workers, now)
        worker = self._workers[choice.worker]
        worker.outstanding += 1
        worker.active_blocks += len(request.chain)
        uncached_tokens = request.prompt_tokens - worker.cached_blocks(request) * request.block_tokens
        worker.pending_prefill_tokens += uncached_tokens
        sequence = worker.engine.add(request, now)
        sequence.pending_tokens = uncached_tokens
        self._measured.routed(request, choice, sequence)
        self._schedule(worker)

    def _end_step(self, worker: WorkerView, now: float) -> None:
        if now != worker.engine.due_s:
            return  # an arrival cut the run of steps this event was for, and set another
        happened = worker.engine.finish_step(now)
        for sequence in happened.first_tokens:
            worker.pending_prefill_tokens -= sequence.pending_tokens
            self._policy.first_token(sequence, now)
        for sequence in happened.finished:
            self._finish(worker, sequence, now)
        self._step_at[worker.index] = math.inf
        self._schedule(worker)

    def _finish(self, worker: WorkerView, sequence: Sequence, now: float) -> None:
        worker.outstanding -= 1
        worker.active_blocks -= len(sequence.request.chain)
        self._policy.finished(sequence, now)
        self._measured.finished(sequence, now)
        following = self._workload.after(sequence.request, now)
        if following is not None:
            self._later(following.arrival_s, _Kind.ARRIVAL, following)

    def _schedule(self, worker: WorkerView) -> None:
        due_s = worker.engine.due_s
        if due_s != math.inf and due_s != self._step_at[worker.index]:
            self._step_at[worker.index] = due_s
            self._later(due_s, _Kind.STEP, worker)

    def _sample(self, worker: WorkerView, now: float) -> Sample:
        engine = worker.engine
        evicted = engine.cache.evictions - self._evictions_before[worker.index]
        self._evictions_before[worker.index] = engine.cache.evictions
        return Sample(
            at=now,
            waiting=len(engine.waiting),
            running=engine.running,
            kv_use=engine.cache.pinned_share,
            resident_blocks=engine.cache.resident_blocks,
            evictions_per_s=evicted / POLL_S,
        )

    def _deliver(self, samples: Many[Sample], now: float) -> None:
        for worker, sample in zip(self._workers, samples, strict=True):
            worker.sample = sample
        self._policy.sampled(self._workers, now)

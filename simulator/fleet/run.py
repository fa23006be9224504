"""One run: a workload, a policy and N workers on a simulated clock.

Events in order of time: a request arrives and is routed at once; a worker's step ends; metrics are polled every
POLL_S and reach the router a scrape's delay later; what else the run's conditions bring. Network and router take no
time. Everything ends DRAIN_S after the last arrival: what has not finished is counted as unfinished.

A worker that dies loses its cache and its requests, which are sent again at once: their first token is that of the last
attempt. Routers and rules see at once that it is gone, and that it is back.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
import random
from collections.abc import Callable
from collections.abc import Sequence as Many
from enum import IntEnum

from simulator.fleet.cache import PrefixCache
from simulator.fleet.churn import departures
from simulator.fleet.conditions import IDEAL, Conditions, Departure
from simulator.fleet.engine import FleetEngine, Sequence
from simulator.fleet.hardware import GpuProfile
from simulator.fleet.kv_events import EventFeed
from simulator.fleet.measure import TTFT_GOOD_S, Measured, RunResult, summarise
from simulator.fleet.policy import Policy, Sample, WorkerView
from simulator.fleet.salted import SaltedWorkload
from simulator.fleet.telling_cache import TellingCache
from simulator.fleet.tier import SharedTier
from simulator.fleet.workload import BLOCK_TOKENS, Request, Workload

POLL_S = 2.0
DRAIN_S = 60.0


class _Kind(IntEnum):
    STEP = 0
    ARRIVAL = 1
    POLL = 2
    SAMPLES = 3
    CALL = 4


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
        conditions: Conditions = IDEAL,
        seed: int = 0,
    ) -> None:
        """`seed`: of the conditions' dice. Raises ValueError for conditions that cannot be."""
        conditions.check()
        self._good_s = good_s
        self._conditions = conditions
        self._seed = seed
        self._workload = SaltedWorkload(workload, tenants=conditions.tenants) if conditions.tenants > 1 else workload
        self._policy = policy
        self._workers, self._feed = self._make_workers(profile, workers, block_tokens)
        self._present = self._workers
        self._back_at = [0.0] * workers
        self._events: list[tuple[float, int, int, object]] = []
        self._order = itertools.count()
        self._step_at = [math.inf] * workers
        self._evictions_before = [0] * workers
        self._measured = Measured()

    def _make_workers(
        self, profile: GpuProfile, workers: int, block_tokens: int
    ) -> tuple[list[WorkerView], EventFeed | None]:
        conditions, followers = self._conditions, self._policy.followers()
        tier = SharedTier(conditions.tier, profile, block_tokens=block_tokens) if conditions.tier.gib else None
        blocks = profile.kv_capacity_tokens // block_tokens
        telling = [TellingCache(blocks, block_tokens=block_tokens) for _ in range(workers)] if followers else []
        caches: Many[PrefixCache | None] = telling or [None] * workers
        views = [
            WorkerView(index, FleetEngine(profile, block_tokens=block_tokens, cache=cache, tier=tier))
            for index, cache in enumerate(caches)
        ]
        if not telling:
            return views, None
        return views, EventFeed(telling, followers, conditions, later=self._call, rng=self._dice("events"))

    def _dice(self, name: str) -> random.Random:
        return random.Random(f"{name}/{self._seed}")  # noqa: S311  repeatable, no secret

    def run(self) -> RunResult:
        for request in self._workload.first():
            self._later(request.arrival_s, _Kind.ARRIVAL, request)
        self._later(POLL_S, _Kind.POLL, None)
        end_s = self._workload.duration_s + DRAIN_S
        if self._feed is not None:
            self._feed.start()
        if self._conditions.churns:
            self._plan_departures(end_s)
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
            self._later(now + self._conditions.scrape_delay_s, _Kind.SAMPLES, samples)
            self._later(now + POLL_S, _Kind.POLL, None)
        elif kind == _Kind.SAMPLES:
            assert isinstance(subject, list)
            self._deliver(subject, now)
        else:
            assert callable(subject)
            subject(now)

    def _call(self, at: float, what: Callable[[float], None]) -> None:
        if at < math.inf:
            self._later(at, _Kind.CALL, what)

    def _route(self, request: Request, now: float) -> None:
        if not self._present:
            # Behind the return, which was planned before.
            self._call(min(self._back_at), functools.partial(self._route, request))
            return
        choice = self._policy.choose(request, self._present, now)
        worker = self._workers[choice.worker]
        worker.outstanding += 1
        worker.active_blocks += len(request.chain)
        uncached_tokens = request.prompt_tokens - worker.cached_blocks(request) * request.block_tokens
        worker.pending_prefill_tokens += uncached_tokens
        sequence = worker.engine.add(request, now)
        sequence.pending_tokens = uncached_tokens
        self._measured.routed(request, choice, sequence)
        self._schedule(worker)
        if self._feed is not None:
            self._feed.publish(worker.index, now)

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
        if self._feed is not None:
            self._feed.publish(worker.index, now)

    def _plan_departures(self, end_s: float) -> None:
        planned = departures(self._conditions, workers=len(self._workers), until_s=end_s, rng=self._dice("churn"))
        for departure in planned:
            self._call(departure.at_s, functools.partial(self._leave, departure))

    def _leave(self, departure: Departure, now: float) -> None:
        worker = self._workers[departure.worker]
        if worker.away:
            return
        lost = worker.engine.die(now)
        worker.away, worker.sample = True, None
        worker.outstanding = worker.pending_prefill_tokens = worker.active_blocks = 0
        self._step_at[worker.index] = math.inf
        self._back_at[worker.index] = now + departure.away_s
        self._call(now + departure.away_s, functools.partial(self._return, worker))
        self._note_present()
        if self._feed is not None:
            self._feed.left(worker.index)
        self._policy.left(worker.index, lost, now)
        self._measured.failed_over += len(lost)
        for sequence in lost:
            self._route(sequence.request, now)

    def _return(self, worker: WorkerView, now: float) -> None:
        worker.away = False
        self._back_at[worker.index] = 0.0
        self._note_present()
        self._policy.returned(worker.index, now)
        if self._feed is not None:
            self._feed.returned(worker.index, now)

    def _note_present(self) -> None:
        self._present = [worker for worker in self._workers if not worker.away]

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

    def _sample(self, worker: WorkerView, now: float) -> Sample | None:
        if worker.away:
            return None
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

    def _deliver(self, samples: Many[Sample | None], now: float) -> None:
        for worker, sample in zip(self._workers, samples, strict=True):
            worker.sample = None if worker.away else sample
        self._policy.sampled(self._workers, now)

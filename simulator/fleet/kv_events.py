"""KV events from workers to routers: numbered batches, late or lost on their way, asked for again where they can be.

A worker publishes at the end of each step. Routers follow with `router.core.exact.event_stream.EventStream`, the code
that follows real workers: a gap is noticed by number or, behind the last batch, by asking after a second of silence.
Replays are not lost: they come over a connection of their own.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from router.core.exact.event_stream import Ask, EventStream
from simulator.fleet.conditions import Conditions
from simulator.fleet.telling_cache import TellingCache

REPLAYED_MAX = 10_000
"""Batches that a worker keeps for replays by default."""
TICK_S = 1.0
REPLAY_STEPS = 32
"""Replayed batches between two looks at whether the stream takes more."""

Later = Callable[[float, Callable[[float], None]], None]
"""(when, what to do then)"""
Followers = Sequence[Sequence[EventStream]]
"""By router, by worker."""


@dataclass(slots=True, eq=False)
class _Publisher:
    """One life of a worker."""

    worker: int
    cache: TellingCache
    alive: bool = True
    number: int = 0
    kept: deque[tuple[int, bytes]] = field(default_factory=lambda: deque(maxlen=REPLAYED_MAX))


class EventFeed:
    def __init__(
        self,
        caches: Sequence[TellingCache],
        followers: Followers,
        conditions: Conditions,
        *,
        later: Later,
        rng: random.Random,
    ) -> None:
        self._publishers = [_Publisher(worker, cache) for worker, cache in enumerate(caches)]
        self._followers = followers
        self._delay_s = conditions.event_delay_s
        self._loss = conditions.event_loss
        self._later = later
        self._rng = rng
        self._answered: dict[EventStream, int] = {}
        """Number of the last replay that was asked for."""
        self.batches = 0
        self.lost = 0

    def start(self) -> None:
        for index in range(len(self._publishers)):
            self.returned(index, 0.0)
        self._later(TICK_S, self._tick)

    def publish(self, worker: int, now: float) -> None:
        """What the worker's cache did since the last time."""
        publisher = self._publishers[worker]
        payload = publisher.cache.take_batch(now)
        if payload is None:
            return
        number = publisher.number
        publisher.number += 1
        publisher.kept.append((number, payload))
        for streams in self._followers:
            self.batches += 1
            if self._loss and self._rng.random() < self._loss:
                self.lost += 1
                continue
            self._deliver(streams[worker], publisher, number, payload, now)

    def left(self, worker: int) -> None:
        """What it still had on its way goes with its connections."""
        publisher = self._publishers[worker]
        publisher.alive = False
        self._publishers[worker] = _Publisher(worker, publisher.cache)
        for streams in self._followers:
            streams[worker].disconnect()

    def returned(self, worker: int, now: float) -> None:
        """The worker publishes, for the first time or in a life of its own."""
        for streams in self._followers:
            streams[worker].connect()
            self._follow(streams[worker], self._publishers[worker], now)

    def _deliver(self, stream: EventStream, publisher: _Publisher, number: int, payload: bytes, now: float) -> None:
        def arrive(now: float) -> None:
            if publisher.alive:
                stream.receive(number, payload, now=now)
                self._follow(stream, publisher, now)

        self._in(self._delay_s, arrive, now)

    def _follow(self, stream: EventStream, publisher: _Publisher, now: float) -> None:
        """Let the stream do its work, and pass on what it asks for."""
        while stream.step():
            pass
        ask = stream.ask
        if ask is not None and self._answered.get(stream) != ask.number:
            self._answered[stream] = ask.number
            self._in(2 * self._delay_s, lambda now: self._answer(stream, ask, publisher, now), now)

    def _answer(self, stream: EventStream, ask: Ask, publisher: _Publisher, now: float) -> None:
        if not publisher.alive:
            return
        for count, (number, payload) in enumerate(publisher.kept):
            if number >= ask.start:
                stream.replay_receive(ask, number, payload)
            if count % REPLAY_STEPS == REPLAY_STEPS - 1:
                while stream.step():
                    pass
        stream.replay_end(ask)
        self._follow(stream, publisher, now)

    def _tick(self, now: float) -> None:
        for streams in self._followers:
            for stream, publisher in zip(streams, self._publishers, strict=True):
                stream.tick(now=now)
                self._follow(stream, publisher, now)
        self._later(now + TICK_S, self._tick)

    def _in(self, seconds: float, what: Callable[[float], None], now: float) -> None:
        if seconds:
            self._later(now + seconds, what)
        else:
            what(now)

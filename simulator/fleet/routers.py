"""Several routers before one fleet, each with partial knowledge: its own decisions and, four times a second, what the
others tell of their load and of where prompts went.

Requests reach a router at random, as from a load balancer without affinity.
"""

from __future__ import annotations

import random
from collections.abc import Sequence as Many

from router.core.exact.event_stream import EventStream
from simulator.fleet.engine import Sequence
from simulator.fleet.policy import Choice, Policy, WorkerView
from simulator.fleet.tidemark import Tidemark
from simulator.fleet.workload import Request

SHARED_EVERY_S = 0.25


class Routers(Policy):
    def __init__(self, routers: Many[Tidemark], *, rng: random.Random) -> None:
        """Raises ValueError without a router."""
        if not routers:
            raise ValueError("a fleet needs a router")
        self._routers = routers
        self._rng = rng
        self._asked: dict[int, Tidemark] = {}
        self._shared_at = 0.0

    def choose(self, request: Request, workers: list[WorkerView], now: float) -> Choice:
        if now - self._shared_at >= SHARED_EVERY_S:
            self._share(now)
        router = self._rng.choice(self._routers)
        self._asked[request.id] = router
        return router.choose(request, workers, now)

    def first_token(self, sequence: Sequence, now: float) -> None:
        self._asked[sequence.request.id].first_token(sequence, now)

    def finished(self, sequence: Sequence, now: float) -> None:
        self._asked.pop(sequence.request.id).finished(sequence, now)

    def sampled(self, workers: list[WorkerView], now: float) -> None:
        for router in self._routers:
            router.sampled(workers, now)

    def followers(self) -> Many[Many[EventStream]]:
        return [streams for router in self._routers for streams in router.followers()]

    def left(self, worker: int, lost: Many[Sequence], now: float) -> None:
        for router in self._routers:
            own = [sequence for sequence in lost if self._asked.get(sequence.request.id) is router]
            router.left(worker, own, now)

    def returned(self, worker: int, now: float) -> None:
        for router in self._routers:
            router.returned(worker, now)

    def _share(self, now: float) -> None:
        """Every router's load to all others, as it is at this moment."""
        self._shared_at = now
        loads = {str(number): router.table.own_load(now=now) for number, router in enumerate(self._routers)}
        for number, router in enumerate(self._routers):
            router.table.other_routers = len(self._routers) - 1
            router.table.apply_peers(now=now, loads={name: load for name, load in loads.items() if name != str(number)})
        for router in self._routers:
            placed = router.table.take_placed()
            for other in self._routers:
                if other is not router:
                    other.table.hear_placed(placed, now=now)

"""Sessions of prompts as a workload: sessions begin at random moments, later turns follow their answers.

Open loop in sessions (Poisson arrivals at the rate that a load means, `demand.py`), closed within one: a turn is sent
when the one before is answered and its pause is over.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import islice

from simulator.fleet.demand import demand_s, known_blocks
from simulator.fleet.generated.prompts import Prompt
from simulator.fleet.hardware import GpuProfile
from simulator.fleet.names import BlockName
from simulator.fleet.workload import BLOCK_TOKENS, Request

Session = Sequence[Prompt]


class SessionWorkload:
    """`sessions` without end; as many are taken as bring `requests` prompts.

    Turns that would be sent after the duration are not: where sessions take long beside it, fewer prompts are sent.
    """

    def __init__(
        self,
        sessions: Iterator[Session],
        profile: GpuProfile,
        *,
        workers: int,
        load: float,
        requests: int,
        rng: random.Random,
    ) -> None:
        taken = _take(sessions, requests)
        prompts = [prompt for session in taken for prompt in session]
        self.demand_s = _mean_demand_s(prompts, profile)
        self.duration_s = len(prompts) * self.demand_s / (load * workers)
        self._rest: dict[int, tuple[Session, int]] = {}
        self._next_id = 0
        # Of a Poisson process given its number of events: times are uniform.
        begins = sorted(rng.random() * self.duration_s for _ in taken)
        self._first = [self._request(session, 0, at) for session, at in zip(taken, begins, strict=True)]

    def first(self) -> list[Request]:
        return self._first

    def after(self, request: Request, finished_s: float) -> Request | None:
        session, turn = self._rest.pop(request.id)
        if turn + 1 == len(session):
            return None
        at = finished_s + session[turn + 1].pause_s
        return self._request(session, turn + 1, at) if at <= self.duration_s else None

    def _request(self, session: Session, turn: int, at: float) -> Request:
        prompt = session[turn]
        self._next_id += 1
        self._rest[self._next_id] = (session, turn)
        return Request(
            id=self._next_id,
            arrival_s=at,
            prompt_tokens=prompt.tokens,
            output_tokens=prompt.output_tokens,
            chain=prompt.chain(),
            text_hashes=prompt.text_hashes(),
            affinity=prompt.affinity,
        )


def _take(sessions: Iterator[Session], requests: int) -> list[Session]:
    taken: list[Session] = []
    while requests > 0:
        session = next(sessions)
        taken.append(session)
        requests -= len(session)
    return taken


DEMAND_SAMPLE = 2_000
"""Prompts from which the mean demand is taken."""


def _mean_demand_s(prompts: Sequence[Prompt], profile: GpuProfile) -> float:
    seen: set[BlockName] = set()
    total_s, count = 0.0, 0
    for prompt in islice(prompts, DEMAND_SAMPLE):
        known = known_blocks(prompt.chain(), (prompt.tokens - 1) // BLOCK_TOKENS, seen)
        total_s += demand_s(profile, prompt_tokens=prompt.tokens, output_tokens=prompt.output_tokens, known=known)
        count += 1
    return total_s / count

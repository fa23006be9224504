"""The WEKA trace, closed loop: slots that play one agent session after the other, their number scaled to the load.

A slot waits for the answer, then for the turn's think time (`WekaTurn.pause_s`), then sends the next turn. It begins
in the middle of a session, so that contexts are long from the start; a session that ended is followed by another of
the seeded shuffle. Sessions whose tools and system prompt have equal lengths share those blocks; all else is their
own, and a session played again is a new one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.fleet.demand import demand_s, known_blocks, unloaded_s
from simulator.fleet.hardware import GpuProfile
from simulator.fleet.names import BlockName, Names, key_of, named, places
from simulator.fleet.workload import BLOCK_TOKENS, TEXT_BLOCK_TOKENS, Request
from simulator.replay import WEKA_BLOCK_TOKENS, WekaTurn

_BLOCK = BLOCK_TOKENS // WEKA_BLOCK_TOKENS
_TEXT_BLOCK = TEXT_BLOCK_TOKENS // WEKA_BLOCK_TOKENS
_SESSIONS_SAMPLED = 60
"""Sessions from which demand and cycle time are estimated."""

Session = Sequence[WekaTurn]


@dataclass(slots=True)
class _Slot:
    session: Session
    play: int
    """Numbers the sessions played: the family of their own names."""
    turn: int


class AgentWorkload:
    def __init__(
        self, trace: Sequence[Session], profile: GpuProfile, *, workers: int, load: float, requests: int, seed: int
    ) -> None:
        fitting = [
            session for session in trace if max(turn.input_length for turn in session) < profile.kv_capacity_tokens / 2
        ]
        self._rng = random.Random(f"agents/{seed}")  # noqa: S311  repeatable, no secret
        self.demand_s, cycle_s = _mean_demand_and_cycle_s(fitting[:_SESSIONS_SAMPLED], profile)
        self.sessions = max(1, round(load * workers * _sessions_a_worker(fitting, profile, self.demand_s, cycle_s)))
        self.duration_s = requests * cycle_s / self.sessions
        self._shuffled = self._shuffle(fitting)
        self._slots: dict[int, _Slot] = {}
        self._plays = 0
        self._next_id = 0
        self._cycle_s = cycle_s

    def first(self) -> list[Request]:
        return [self._begin() for _ in range(self.sessions)]

    def after(self, request: Request, finished_s: float) -> Request | None:
        slot = self._slots.pop(request.id)
        slot.turn += 1
        if slot.turn == len(slot.session):
            slot = self._slot(turn=0)
        at = finished_s + slot.session[slot.turn].pause_s
        return self._request(slot, at) if at <= self.duration_s else None

    def _begin(self) -> Request:
        slot = self._slot(turn=None)
        return self._request(slot, self._rng.random() * self._cycle_s)

    def _slot(self, *, turn: int | None) -> _Slot:
        session = next(self._shuffled)
        self._plays += 1
        return _Slot(session, self._plays, self._rng.randrange(len(session)) if turn is None else turn)

    def _shuffle(self, sessions: Sequence[Session]) -> Iterator[Session]:
        order = list(sessions)
        while True:
            self._rng.shuffle(order)
            yield from order

    def _request(self, slot: _Slot, arrival_s: float) -> Request:
        row = slot.session[slot.turn]
        self._next_id += 1
        self._slots[self._next_id] = slot
        prompt = _names(row, slot.play)
        later = slot.session[slot.turn + 1] if slot.turn + 1 < len(slot.session) else None
        with_answer = _with_answer(row, prompt, None if later is None else _names(later, slot.play), slot)
        return Request(
            id=self._next_id,
            arrival_s=arrival_s,
            prompt_tokens=row.input_length,
            output_tokens=row.output_length,
            chain=with_answer[_BLOCK - 1 :: _BLOCK].tolist(),
            text_hashes=prompt[_TEXT_BLOCK - 1 :: _TEXT_BLOCK].tolist(),
            affinity=slot.play,
        )


def _names(row: WekaTurn, play: int) -> Names:
    """Names of the whole 64-token blocks of a turn's prompt."""
    ids = np.concatenate([places(first, first + count) for first, count in row.hash_runs])
    tools = row.tool_tokens // WEKA_BLOCK_TOKENS
    head = (row.tool_tokens + row.system_tokens) // WEKA_BLOCK_TOKENS
    names = np.concatenate(
        [
            named(key_of("tools", row.tool_tokens), places(0, tools)),
            named(key_of("system", row.tool_tokens, row.system_tokens), places(tools, head)),
            named(key_of("session", play), ids[head:]),
        ]
    )
    return names[: row.input_length // WEKA_BLOCK_TOKENS]


def _with_answer(row: WekaTurn, prompt: Names, later: Names | None, slot: _Slot) -> Names:
    """Prompt and answer: the answer under the names the next turn gives it, if that turn goes on behind this one."""
    end = (row.input_length + row.output_length) // WEKA_BLOCK_TOKENS
    names = prompt
    whole = len(prompt)
    if later is not None and 0 < whole <= len(later) and later[whole - 1] == prompt[whole - 1]:
        names = later[:end]
    own = named(key_of("answer", slot.play, slot.turn), places(len(names), end))
    return np.concatenate([names, own])


def _sessions_a_worker(sessions: Sequence[Session], profile: GpuProfile, demand_s: float, cycle_s: float) -> float:
    """What keeps a worker just busy, or fills its KV cache, whichever is less (see `demand.py`)."""
    lengths = [row.input_length + row.output_length for session in sessions for row in session]
    return min(cycle_s / demand_s, profile.kv_capacity_tokens / (sum(lengths) / len(lengths)))


def _mean_demand_and_cycle_s(sessions: Sequence[Session], profile: GpuProfile) -> tuple[float, float]:
    """Mean GPU seconds of a turn, and mean seconds from one turn of a session to the next without queueing."""
    seen: set[BlockName] = set()
    total_demand_s = total_cycle_s = 0.0
    turns = 0
    for play, session in enumerate(sessions):
        for row in session:
            chain = _names(row, -1 - play)[_BLOCK - 1 :: _BLOCK].tolist()
            known = known_blocks(chain, (row.input_length - 1) // BLOCK_TOKENS, seen)
            prompt, output = row.input_length, row.output_length
            total_demand_s += demand_s(profile, prompt_tokens=prompt, output_tokens=output, known=known)
            total_cycle_s += unloaded_s(profile, prompt_tokens=prompt, output_tokens=output, known=known) + row.pause_s
            turns += 1
    return total_demand_s / turns, total_cycle_s / turns

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
from functools import lru_cache
from typing import cast

import numpy as np

from simulator.fleet.demand import demand_s, known_blocks, unloaded_s
from simulator.fleet.hardware import GpuProfile
from simulator.fleet.names import BlockName, Names, key_of, listed, named, places
from simulator.fleet.workload import BLOCK_TOKENS, TEXT_BLOCK_TOKENS, Request
from simulator.replay import WEKA_BLOCK_TOKENS, WekaTurn

_BLOCK = BLOCK_TOKENS // WEKA_BLOCK_TOKENS
_TEXT_BLOCK = TEXT_BLOCK_TOKENS // WEKA_BLOCK_TOKENS
_KV_TEXTS = BLOCK_TOKENS // TEXT_BLOCK_TOKENS
"""Text blocks of a KV block."""
_SESSIONS_SAMPLED = 60
"""Sessions from which demand and cycle time are estimated."""

Session = Sequence[WekaTurn]


@dataclass(slots=True)
class _Slot:
    session: Session
    play: int
    """Numbers the sessions played: the family of their own names."""
    turn: int
    ahead: _Text | None = None
    """Of the turn to come, where the one before it needed it."""


@dataclass(frozen=True, slots=True)
class _Text:
    """A turn's prompt by name."""

    places: Names
    """The trace's id of each whole 64-token block."""
    names: Names
    """Of the whole text blocks."""
    numbers: list[BlockName]
    """The same."""
    whole: int
    """64-token blocks."""


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
        row, turn = slot.session[slot.turn], slot.turn
        self._next_id += 1
        self._slots[self._next_id] = slot
        text = slot.ahead or _text(row, slot.play, _TEXT_BLOCK)
        following = slot.session[turn + 1] if turn + 1 < len(slot.session) else None
        slot.ahead = None if following is None else _text(following, slot.play, _TEXT_BLOCK, behind=text)
        return Request(
            id=self._next_id,
            arrival_s=arrival_s,
            prompt_tokens=row.input_length,
            output_tokens=row.output_length,
            chain=_chain(row, text, slot),
            text_hashes=cast("list[int]", text.numbers),
            affinity=slot.play,
        )


def _text(row: WekaTurn, play: int, every: int, *, behind: _Text | None = None) -> _Text:
    """A turn's prompt, with a name for each whole block of `every` 64-token blocks: that of the last of them.

    `behind`: of the turn before, whose numbers are used again.
    """
    ids = np.concatenate([places(first, first + count) for first, count in row.hash_runs])
    head = (row.tool_tokens + row.system_tokens) // WEKA_BLOCK_TOKENS
    whole = min(row.input_length // WEKA_BLOCK_TOKENS, max(head, len(ids)))
    own = every - 1 + head // every * every
    own_names = named(key_of("session", play), ids[own::every])
    names = np.concatenate([_shared_names(row.tool_tokens, row.system_tokens, every), own_names])[: whole // every]
    numbers = names.tolist() if behind is None else listed(names, behind.names, behind.numbers)
    return _Text(ids, names, numbers, whole)


@lru_cache(maxsize=4_096)
def _shared_names(tool_tokens: int, system_tokens: int, every: int) -> Names:
    """Of the blocks of tools and system prompt. Not to be changed."""
    tools, head = tool_tokens // WEKA_BLOCK_TOKENS, (tool_tokens + system_tokens) // WEKA_BLOCK_TOKENS
    return np.concatenate(
        [
            named(key_of("tools", tool_tokens), _lasts(0, tools, every)),
            named(key_of("system", tool_tokens, system_tokens), _lasts(tools, head, every)),
        ]
    )


def _lasts(first: int, after: int, every: int) -> Names:
    """Of the numbers first … after − 1 those at the end of a block of `every`."""
    return places(first // every, after // every) * np.uint64(every) + np.uint64(every - 1)


def _chain(row: WekaTurn, text: _Text, slot: _Slot) -> list[BlockName]:
    """Prompt and answer: the answer under the names the next turn gives it, if that turn goes on behind this one."""
    end = (row.input_length + row.output_length) // WEKA_BLOCK_TOKENS
    following, known = slot.ahead, text
    if following is not None and 0 < text.whole <= following.whole and _goes_on(slot, text, following):
        known = following
    upto = min(end, known.whole) if known is following else text.whole
    names = known.numbers[_KV_TEXTS - 1 : upto // _BLOCK * _KV_TEXTS : _KV_TEXTS]
    own = named(key_of("answer", slot.play, slot.turn), _lasts(upto, end, _BLOCK))
    return names + own.tolist()


def _goes_on(slot: _Slot, text: _Text, following: _Text) -> bool:
    """Whether the next turn has this prompt's last whole block in its place: blocks stand for all before them."""
    last = text.whole - 1
    row, later = slot.session[slot.turn], slot.session[slot.turn + 1]
    return _family(row, last) == _family(later, last) and (
        last < (row.tool_tokens + row.system_tokens) // WEKA_BLOCK_TOKENS
        or bool(text.places[last] == following.places[last])
    )


def _family(row: WekaTurn, place: int) -> tuple[int, ...]:
    """Which names a 64-token block is among: those of its tools, of its system prompt, or the session's own."""
    if place < row.tool_tokens // WEKA_BLOCK_TOKENS:
        return (row.tool_tokens,)
    if place < (row.tool_tokens + row.system_tokens) // WEKA_BLOCK_TOKENS:
        return (row.tool_tokens, row.system_tokens)
    return ()


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
            chain = _text(row, -1 - play, _BLOCK).numbers
            known = known_blocks(chain, (row.input_length - 1) // BLOCK_TOKENS, seen)
            prompt, output = row.input_length, row.output_length
            total_demand_s += demand_s(profile, prompt_tokens=prompt, output_tokens=output, known=known)
            total_cycle_s += unloaded_s(profile, prompt_tokens=prompt, output_tokens=output, known=known) + row.pause_s
            turns += 1
    return total_demand_s / turns, total_cycle_s / turns

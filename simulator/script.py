"""Who does what in the WEKA replay: session slots, which recorded session each plays, and for which client."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from simulator.replay import WekaTurn


@dataclass(frozen=True, slots=True)
class SessionPlay:
    """One recorded session to be played: `turns` is never empty."""

    turns: list[WekaTurn]
    generation: int
    """How often the trace had been played through before: it makes a repeated session another session."""


class SessionScript:
    """Deals recorded sessions to slots, in a seeded order, for ever."""

    def __init__(self, sessions: list[list[WekaTurn]], *, seed: int) -> None:
        """Raises ValueError for an empty trace."""
        if not sessions:
            raise ValueError("the trace holds no sessions")
        self._sessions = sessions
        self._seed = seed
        self._deal = self._endless()

    def next(self) -> SessionPlay:
        return next(self._deal)

    def join(self) -> SessionPlay:
        """A session already in progress, from a random turn on: what a player that starts finds in a live fleet."""
        play = self.next()
        first = random.Random(f"{self._seed}/{play.turns[0].session}").randrange(len(play.turns))  # noqa: S311
        return SessionPlay(play.turns[first:], play.generation)

    def _endless(self) -> Iterator[SessionPlay]:
        generation = 0
        while True:
            order = list(range(len(self._sessions)))
            random.Random(f"{self._seed}/{generation}").shuffle(order)  # noqa: S311  repeatable order, no secret
            for index in order:
                yield SessionPlay(self._sessions[index], generation)
            generation += 1


def weighted_choice(shares: list[float], *, key: str) -> int:
    """An index with probability proportional to its share, the same for the same key."""
    return random.Random(key).choices(range(len(shares)), weights=shares)[0]  # noqa: S311  repeatable, no secret

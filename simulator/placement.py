"""What placement alone is worth: the WEKA replay over in-process engines on a virtual clock, without any router.

`python -m simulator placement` plays the same sessions twice over the demo's engines: each session always on one
worker (chosen by a hash of its id), and round robin. It prints the share of prompt tokens found in the cache.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from router.contract.histogram import Buckets, observe, quantile
from simulator.engine import Engine, Sequence, TokenOut
from simulator.prose import seed_of
from simulator.replay import WekaTurn, weka_chat
from simulator.script import SessionPlay, SessionScript
from simulator.tokens import render_chat

Place = Callable[[str], int]
"""Session id → index of the engine."""


@dataclass(slots=True)
class PlacementResult:
    requests: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    evictions: int = 0
    preemptions: int = 0
    busy_share: float = 0.0
    """Mean over the engines."""
    kv_use_max: float = 0.0
    above_watermark_share: float = 0.0
    """Share of steps that ended with KV use at or above 85 %."""
    waiting_max: int = 0
    ttft_ms: Buckets = field(default_factory=dict)

    @property
    def hit_share(self) -> float | None:
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else None

    def summary(self) -> dict[str, object]:
        return {
            "requests": self.requests,
            "hit_token_share": self.hit_share,
            "ttft_ms_p50": quantile(self.ttft_ms, 0.5),
            "ttft_ms_p95": quantile(self.ttft_ms, 0.95),
            "evictions": self.evictions,
            "preemptions": self.preemptions,
            "busy_share": self.busy_share,
            "kv_use_max": self.kv_use_max,
            "above_watermark_share": self.above_watermark_share,
            "waiting_max": self.waiting_max,
        }


def session_affine(engines: int) -> Place:
    return lambda session: seed_of(session) % engines


def round_robin(engines: int) -> Place:
    turn = itertools.cycle(range(engines))
    return lambda _session: next(turn)


class PlacementRun:
    """A discrete-event run: the heap orders turns that are due and steps that end, by virtual seconds."""

    def __init__(
        self, engines: list[Engine], place: Place, script: SessionScript, *, speed: float, seed: int, warm_up_s: float
    ) -> None:
        self._engines = engines
        self._place = place
        self._script = script
        self._speed = speed
        self._seed = seed
        self._warm_up_s = warm_up_s
        self._due: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()
        self._stepping = [False] * len(engines)
        self._busy_s = [0.0] * len(engines)
        self._playing: dict[str, tuple[SessionPlay, int]] = {}
        self._steps_measured = self._steps_above = 0
        self.result = PlacementResult()

    def run(self, *, sessions: int, duration_s: float) -> PlacementResult:
        for slot in range(sessions):
            play = self._script.join()
            self._later(play.turns[0].pause_s / self._speed * (slot + 1) / sessions, self._turn(play, 0))
        evictions_before = 0
        while self._due and self._due[0][0] < duration_s:
            now, _, action = heapq.heappop(self._due)
            if now < self._warm_up_s:
                evictions_before = sum(engine.cache.evictions for engine in self._engines)
            action(now)
        result = self.result
        result.evictions = sum(engine.cache.evictions for engine in self._engines) - evictions_before
        result.preemptions = sum(engine.counts.preemptions for engine in self._engines)
        result.busy_share = sum(self._busy_s) / (duration_s * len(self._engines))
        result.above_watermark_share = self._steps_above / max(1, self._steps_measured)
        return result

    def _later(self, at: float, action: Callable[[float], None]) -> None:
        heapq.heappush(self._due, (at, next(self._order), action))

    def _turn(self, play: SessionPlay, index: int) -> Callable[[float], None]:
        return lambda now: self._send(play, index, now)

    def _send(self, play: SessionPlay, index: int, now: float) -> None:
        turn: WekaTurn = play.turns[index]
        chat = weka_chat(turn, generation=play.generation, seed=self._seed)
        tokens = render_chat([(message["role"], message["content"]) for message in chat.messages])
        worker = self._place(chat.session)
        sequence = Sequence(
            id=f"{chat.session}/{turn.turn}/{next(self._order)}",
            tokens=tokens,
            prompt_tokens=len(tokens),
            max_tokens=chat.max_tokens,
            salt=None,
            arrived_at=now,
        )
        self._playing[sequence.id] = (play, index)
        self._engines[worker].add(sequence)
        self._wake(worker, now)

    def _wake(self, worker: int, now: float) -> None:
        if self._stepping[worker]:
            return
        engine = self._engines[worker]
        step = engine.begin_step(now)
        if step is None:
            return
        self._stepping[worker] = True
        self._busy_s[worker] += step.duration_s

        def end(at: float) -> None:
            self._stepping[worker] = False
            self._observe_load(engine)
            for output in engine.finish_step(step, at):
                self._observe(output, at)
            self._wake(worker, at)

        self._later(now + step.duration_s, end)

    def _observe_load(self, engine: Engine) -> None:
        self.result.kv_use_max = max(self.result.kv_use_max, engine.cache.pinned_share)
        self.result.waiting_max = max(self.result.waiting_max, len(engine.waiting))
        self._steps_measured += 1
        self._steps_above += engine.cache.pinned_share >= 0.85

    def _observe(self, output: TokenOut, now: float) -> None:
        sequence = output.sequence
        if output.since_last_s is None and sequence.arrived_at >= self._warm_up_s:
            observe(self.result.ttft_ms, (now - sequence.arrived_at) * 1_000)
        if output.finish_reason is None:
            return
        play, index = self._playing.pop(sequence.id)
        if sequence.arrived_at >= self._warm_up_s:
            self.result.requests += 1
            self.result.prompt_tokens += sequence.prompt_tokens
            self.result.hit_tokens += sequence.cached_tokens or 0
        if index + 1 == len(play.turns):
            play, index = self._script.next(), -1
        pause_s = play.turns[index + 1].pause_s / self._speed
        self._later(now + pause_s, self._turn(play, index + 1))

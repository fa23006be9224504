"""The event-driven engine against the simulated worker's step-by-step one: same requests, same hits, same times."""

from __future__ import annotations

import dataclasses
import heapq
import random
from dataclasses import dataclass

from simulator.engine import Engine, EngineLimits
from simulator.engine import Sequence as WorkerSequence
from simulator.fleet.engine import FleetEngine
from simulator.fleet.hardware import H100_32B
from simulator.fleet.names import BlockName
from simulator.fleet.workload import Request
from simulator.hashing import BlockDigest, event_hash, extend_chain

FINE_TOKENS, COARSE_TOKENS = 16, 512


@dataclass(frozen=True)
class Scene:
    """Conversations over a common head on one worker, sized so that they queue and evict each other."""

    conversations: int
    turns: int
    head_tokens: int
    turn_tokens_max: int
    over_s: float
    capacity_tokens: int


SHORT = Scene(40, 3, head_tokens=700, turn_tokens_max=3_000, over_s=60, capacity_tokens=40_960)
LONG = Scene(16, 3, head_tokens=6_144, turn_tokens_max=9_000, over_s=75, capacity_tokens=163_840)
"""Prompts and cache of the recorded traces' order of magnitude."""


@dataclass(frozen=True)
class Served:
    hit_tokens: int
    ttft_s: float
    preemptions: int


@dataclass(frozen=True)
class Asked:
    arrival_s: float
    prompt: list[int]
    answer: list[int]


def conversations(scene: Scene, *, seed: int) -> list[Asked]:
    """Each turn repeats prompt and answer of the last."""
    dice = random.Random(seed)
    head = [dice.randrange(100, 60_000) for _ in range(scene.head_tokens)]
    asked: list[Asked] = []
    for _ in range(scene.conversations):
        tokens, at = list(head), dice.uniform(0, scene.over_s)
        for _ in range(scene.turns):
            tokens = tokens + [dice.randrange(100, 60_000) for _ in range(dice.randrange(50, scene.turn_tokens_max))]
            answer = answer_to(tokens, dice.randrange(1, 300))
            asked.append(Asked(at, tokens, answer))
            tokens = tokens + answer
            at += dice.uniform(12, 30)
    return sorted(asked, key=lambda turn: turn.arrival_s)


def answer_to(prompt: list[int], output_tokens: int) -> list[int]:
    """What the worker's engine says to it: the same whenever it is asked."""
    engine = Engine(EngineLimits(blocks=10_000))
    sequence = WorkerSequence("", list(prompt), len(prompt), output_tokens, None, 0.0)
    engine.add(sequence)
    while (step := engine.begin_step(0.0)) is not None:
        engine.finish_step(step, 0.0)
    return sequence.tokens[len(prompt) :]


def by_steps(asked: list[Asked], scene: Scene) -> list[Served]:
    engine = Engine(EngineLimits(blocks=scene.capacity_tokens // FINE_TOKENS + 1))
    sequences = [
        WorkerSequence(str(number), list(turn.prompt), len(turn.prompt), len(turn.answer), None, turn.arrival_s)
        for number, turn in enumerate(asked)
    ]
    arrivals = list(sequences)
    now = 0.0
    while arrivals or engine.running or engine.waiting:
        while arrivals and arrivals[0].arrived_at <= now:
            engine.add(arrivals.pop(0))
        step = engine.begin_step(now)
        if step is None:
            now = arrivals[0].arrived_at
            continue
        now += step.duration_s
        engine.finish_step(step, now)
    return [
        Served(each.cached_tokens or 0, (each.first_token_at or 0.0) - each.arrived_at, each.preemptions)
        for each in sequences
    ]


def by_events(asked: list[Asked], scene: Scene, *, block_tokens: int) -> list[Served]:
    profile = dataclasses.replace(H100_32B, kv_capacity_tokens=scene.capacity_tokens)
    engine = FleetEngine(profile, block_tokens=block_tokens)
    arrivals = [(turn.arrival_s, number, named(turn, number, block_tokens)) for number, turn in enumerate(asked)]
    heapq.heapify(arrivals)
    sequences = []
    while arrivals or engine.due_s < float("inf"):
        if arrivals and arrivals[0][0] <= engine.due_s:
            now, _, request = heapq.heappop(arrivals)
            sequences.append(engine.add(request, now))
        else:
            engine.finish_step(engine.due_s)
    return [
        Served(each.cached_tokens or 0, (each.first_token_s or 0.0) - each.request.arrival_s, each.preemptions)
        for each in sequences
    ]


def named(turn: Asked, number: int, block_tokens: int) -> Request:
    digests: list[BlockDigest] = []
    extend_chain(digests, turn.prompt + turn.answer, block_size_tokens=block_tokens, salt=None)
    return Request(
        id=number,
        arrival_s=turn.arrival_s,
        prompt_tokens=len(turn.prompt),
        output_tokens=len(turn.answer),
        chain=[BlockName(event_hash(digest)) for digest in digests],
        text_hashes=[],
        affinity=0,
    )


def mean_ttft_s(served: list[Served]) -> float:
    return sum(each.ttft_s for each in served) / len(served)


def test_it_hits_the_same_tokens_at_the_same_times_with_equal_blocks() -> None:
    asked = conversations(SHORT, seed=2)
    steps, events = by_steps(asked, SHORT), by_events(asked, SHORT, block_tokens=FINE_TOKENS)
    assert sum(each.hit_tokens for each in steps) > 50_000
    assert sum(each.preemptions for each in steps) > 0
    equal = sum(one.hit_tokens == other.hit_tokens for one, other in zip(steps, events, strict=True))
    assert equal >= 0.95 * len(asked)
    assert abs(mean_ttft_s(events) / mean_ttft_s(steps) - 1) < 0.02


def test_it_stays_close_with_the_traces_coarse_blocks() -> None:
    asked = conversations(LONG, seed=1)
    steps, events = by_steps(asked, LONG), by_events(asked, LONG, block_tokens=COARSE_TOKENS)
    lost_tokens = sum(each.hit_tokens for each in steps) - sum(each.hit_tokens for each in events)
    assert 0 <= lost_tokens / len(asked) <= COARSE_TOKENS
    assert abs(mean_ttft_s(events) / mean_ttft_s(steps) - 1) < 0.15

"""The simulated worker against queues with known answers."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from simulator.fleet.engine import FleetEngine
from simulator.fleet.hardware import H100_8B
from simulator.fleet.names import key_of, named, places
from simulator.fleet.workload import BLOCK_TOKENS, Request

PROMPT_TOKENS = H100_8B.max_num_batched_tokens
"""A prompt fills a step's budget: one is served after the other, in order of arrival."""
SERVICE_S = H100_8B.prefill_s(PROMPT_TOKENS, context_tokens=0) + H100_8B.decode_base_s
COUNT = 20_000


def _waits_s(arrivals: list[float]) -> list[float]:
    """From arrival to the beginning of its step, in order of service."""
    engine, waits = FleetEngine(H100_8B), []
    for number, at in enumerate(arrivals):
        _serve(engine, at, waits)
        chain = named(key_of("own", number), places(0, PROMPT_TOKENS // BLOCK_TOKENS)).tolist()
        engine.add(Request(number, at, PROMPT_TOKENS, 1, chain, [], number), at)
    _serve(engine, math.inf, waits)
    return waits


def _serve(engine: FleetEngine, until: float, waits: list[float]) -> None:
    while engine.due_s <= until and engine.due_s != math.inf:
        now = engine.due_s
        waits.extend(now - each.request.arrival_s - SERVICE_S for each in engine.finish_step(now).finished)


@pytest.mark.parametrize("utilisation", [0.3, 0.6, 0.8])
def test_prompts_that_fill_a_step_wait_as_in_an_m_d_1_queue(utilisation: float) -> None:
    """Pollaczek and Khinchine: the mean wait is ρ ÷ (2 (1 − ρ)) × the service time."""
    rng, now, arrivals = random.Random(7), 0.0, []
    for _ in range(COUNT):
        now += rng.expovariate(utilisation / SERVICE_S)
        arrivals.append(now)
    waits = _waits_s(arrivals)
    assert len(waits) == COUNT and min(waits) >= -1e-9
    assert statistics.mean(waits) == pytest.approx(utilisation / (2 * (1 - utilisation)) * SERVICE_S, rel=0.08)


def test_prompts_at_even_spacing_never_wait() -> None:
    """D/D/1 below its capacity."""
    assert max(_waits_s([number * SERVICE_S * 1.01 for number in range(200)])) == pytest.approx(0.0, abs=1e-9)


def test_a_batch_waits_in_line() -> None:
    """Of n that come at once the k-th waits for k − 1."""
    waits = _waits_s([0.0] * 10)
    assert waits == pytest.approx([number * SERVICE_S for number in range(10)])

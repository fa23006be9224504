"""`python -m simulator.fleet.what_if`: what a change of the fleet would do to traffic with these figures. JSON.

A question on standard input (`Question`), the answer on standard output. The head length is calibrated first, so that
the unchanged fleet delivers the hit share that was measured; what is left between the two is the answer's `error`. Each
scenario runs once a seed; `low` and `high` are the extremes over the seeds.

A fleet of more than SLICE_MAX workers is simulated as a slice of that many with its share of the traffic: adding or
removing workers then changes the traffic of the slice.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from router.contract.snapshot import Watermark
from simulator.fleet.hardware import PROFILES, GpuProfile
from simulator.fleet.measure import RunResult
from simulator.fleet.run import FleetRun
from simulator.fleet.synthetic import SyntheticWorkload
from simulator.fleet.tidemark import Tidemark
from simulator.fleet.workload import BLOCK_TOKENS

SLICE_MAX = 8
REQUESTS_MIN, REQUESTS_MAX = 400, 1_500
SPAN_S = 240.0
"""Simulated seconds that a run should cover."""
ROUNDS = 3
"""Of calibration."""
TOLERANCE = 0.01
"""Of the hit share."""
FIGURES = ("hit_token_share", "ttft_p50_s", "ttft_p95_s", "goodput_share")


class Scenario(msgspec.Struct, frozen=True):
    name: str
    workers: int
    low: float
    high: float
    broken: float


class Question(msgspec.Struct, frozen=True):
    """The first scenario is the fleet as it is."""

    requests_per_s: float
    prompt_tokens: int
    output_tokens: int
    hit_share: float
    weights: list[float]
    prefill_tokens_per_s: float
    kv_capacity_tokens: int
    good_s: float
    """A first token within it is good."""
    scenarios: list[Scenario]
    seeds: tuple[int, ...] = (1, 2)
    seconds_max: float = 60.0
    """Of computing; scenarios beyond it are left out."""


def main() -> int:
    try:
        question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
        result = answer(question, clock=time.monotonic)
    except (msgspec.DecodeError, ValueError) as error:
        print(f"what_if: {error}", file=sys.stderr)
        return 2
    sys.stdout.buffer.write(msgspec.json.encode(result) + b"\n")
    return 0


def answer(question: Question, *, clock: Callable[[], float]) -> dict[str, Any]:
    """Raises ValueError for traffic that the simulator is too coarse for."""
    if question.prompt_tokens < 2 * BLOCK_TOKENS:
        raise ValueError(f"prompts shorter than {2 * BLOCK_TOKENS} tokens are below the simulator's grain")
    ends_at = clock() + question.seconds_max
    base = question.scenarios[0]
    head_blocks, reached = _calibrated(question, base)
    scenarios = []
    for scenario in question.scenarios:
        if clock() >= ends_at:
            break
        results = [_simulate(question, scenario, head_blocks, seed) for seed in question.seeds]
        scenarios.append({"name": scenario.name, "workers": scenario.workers, **_summed(results)})
    return {
        "scenarios": scenarios,
        "left_out": [scenario.name for scenario in question.scenarios[len(scenarios) :]],
        "error": abs(reached - question.hit_share),
        "seeds": len(question.seeds),
        "slice": min(base.workers, SLICE_MAX),
    }


def _calibrated(question: Question, base: Scenario) -> tuple[float, float]:
    """(mean blocks of a head, hit share that the unchanged fleet then delivers)."""
    longest = (question.prompt_tokens - 1) // BLOCK_TOKENS
    blocks = min(longest, question.hit_share * question.prompt_tokens / BLOCK_TOKENS / max(0.05, 1 - base.broken))
    reached = 0.0
    for _ in range(ROUNDS):
        reached = _simulate(question, base, blocks, question.seeds[0])["hit_token_share"] or 0.0
        if abs(reached - question.hit_share) <= TOLERANCE or not reached:
            break
        blocks = min(float(longest), blocks * question.hit_share / reached)
    return blocks, reached


def _simulate(question: Question, scenario: Scenario, head_blocks: float, seed: int) -> dict[str, float | None]:
    full = question.scenarios[0].workers
    sliced = full > SLICE_MAX
    workers = SLICE_MAX if sliced else scenario.workers
    rate = question.requests_per_s * (SLICE_MAX / scenario.workers if sliced else 1.0)
    requests = int(min(REQUESTS_MAX, max(REQUESTS_MIN, rate * SPAN_S)))
    profile = _profile(question)
    workload = SyntheticWorkload(
        profile, requests=requests, requests_per_s=rate, prompt_tokens=question.prompt_tokens,
        output_tokens=question.output_tokens, head_blocks=head_blocks, weights=question.weights,
        broken=scenario.broken, seed=seed,
    )  # fmt: skip
    policy = Tidemark(
        workers, profile, rng=random.Random(seed),  # noqa: S311  repeatable, no secret
        watermark=Watermark(low=scenario.low, high=scenario.high),
    )  # fmt: skip
    result = FleetRun(workload, policy, profile, workers=workers, good_s=question.good_s).run()
    return _figures(result)


def _profile(question: Question) -> GpuProfile:
    """The measured prefill rate and capacity; decoding like the known machine whose prefill is nearest."""
    nearest = min(PROFILES.values(), key=lambda known: abs(known.prefill_tokens_per_s - question.prefill_tokens_per_s))
    return replace(
        nearest,
        name="measured",
        prefill_tokens_per_s=question.prefill_tokens_per_s,
        kv_capacity_tokens=max(question.kv_capacity_tokens, 4 * (question.prompt_tokens + question.output_tokens)),
    )


def _figures(result: RunResult) -> dict[str, float | None]:
    return {
        "hit_token_share": result.hit_token_share,
        "ttft_p50_s": result.ttft_p50_s,
        "ttft_p95_s": result.ttft_p95_s,
        "goodput_share": result.good / result.measured if result.measured else None,
    }


def _summed(results: list[dict[str, float | None]]) -> dict[str, Any]:
    """Mean and extremes over the seeds."""
    shown: dict[str, Any] = {}
    for name in FIGURES:
        values = [value for result in results if (value := result[name]) is not None]
        shown[name] = {"mean": sum(values) / len(values), "low": min(values), "high": max(values)} if values else None
    return shown


if __name__ == "__main__":
    sys.exit(main())

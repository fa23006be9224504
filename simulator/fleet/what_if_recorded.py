"""What a change of the fleet would have done to recorded traffic: each scenario on each seed, with the production core.

A fleet of more than SLICE_MAX workers is simulated as a slice of that many with its share of the sessions: adding or
removing workers then changes the traffic of the slice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from router.contract.recorded import RecordedRequest
from simulator.fleet.hardware import PROFILES, GpuProfile
from simulator.fleet.measure import RunResult
from simulator.fleet.policies import POLICIES
from simulator.fleet.policy import Policy
from simulator.fleet.question import Answer, Asked, Deviation, Interval, Measured, Outcome, Question, Sampled
from simulator.fleet.recorded import RecordedWorkload, Replay, copies, measured_part
from simulator.fleet.recorded_file import Recording
from simulator.fleet.recorded_names import bytes_per_token, mend, prompts_of
from simulator.fleet.run import FleetRun
from simulator.fleet.side_by_side import Counted, side_by_side
from simulator.fleet.tidemark import Tidemark
from simulator.fleet.workload import BLOCK_TOKENS

SLICE_MAX = 8
TOLD_STEPS = 200
"""Progress is told about so often."""
BLOCKS_A_PROMPT = 24
"""The mean prompt has about so many blocks: what a whole block rounds off is then 2 % of it."""
BLOCK_TOKENS_MIN = 64

Told = Callable[[int, int, str, int], None]
"""Requests simulated, of how many, in which scenario, on which seed."""


@dataclass(slots=True)
class Simulated:
    """One scenario on one seed."""

    result: RunResult
    prefill_s: float
    """GPU seconds of the whole fleet."""


class WhatIf:
    """Raises ValueError with one sentence where the recording cannot answer."""

    def __init__(self, question: Question, recording: Recording, told: Told, *, processes: int = 1) -> None:
        """At most `processes` runs are simulated at a time, the same whatever their number."""
        self._question = question
        self._processes = processes
        recording = recording.of_pool(question.pool)
        self._requests = [each for each in recording.requests if self._fits(each)]
        self._too_long = len(recording.requests) - len(self._requests)
        if len(self._requests) < 2:
            raise ValueError("the recording holds too few requests that fit a worker of this size")
        self._recording = recording
        self._block_tokens = _grain(self._requests)
        self._prompts = prompts_of(self._requests)
        self._ratios = bytes_per_token(self._requests)
        self._mended = mend(self._prompts, recording.head.broken, self._ratios)
        self._progress = _Progress(told, sum(self._planned(asked) for asked in question.scenarios))

    def answer(self) -> Answer:
        question = self._question
        planned = [(asked, seed) for asked in question.scenarios for seed in question.seeds]
        runs = side_by_side(planned, self._run, self._progress.further, processes=self._processes)
        of_each = [runs[at : at + len(question.seeds)] for at in range(0, len(runs), len(question.seeds))]
        outcomes = [
            self._outcome(asked, runs, None if asked is question.scenarios[0] else of_each[0])
            for asked, runs in zip(question.scenarios, of_each, strict=True)
        ]
        self._progress.end()
        measured = _measured(measured_part(self._requests))
        return Answer(
            scenarios=outcomes, measured=measured, error=_deviation(outcomes[0], measured), sampled=self._sampled(),
            seeds=list(question.seeds), slice_workers=SLICE_MAX if question.workers > SLICE_MAX else None,
            block_tokens=self._block_tokens,
        )  # fmt: skip

    def _fits(self, request: RecordedRequest) -> bool:
        smallest = min(self._profile(asked).kv_capacity_tokens for asked in self._question.scenarios)
        return request.prompt_tokens + request.output_tokens <= smallest - BLOCK_TOKENS

    def _profile(self, asked: Asked) -> GpuProfile:
        question = self._question
        known = PROFILES[question.profile]
        capacity = question.kv_capacity_tokens or known.kv_capacity_tokens
        return replace(
            known,
            kv_capacity_tokens=int(capacity * asked.kv_capacity_factor),
            prefill_tokens_per_s=question.prefill_tokens_per_s or known.prefill_tokens_per_s,
        )

    def _wanted(self, asked: Asked) -> float:
        """Share of the recorded traffic that the simulated workers get."""
        sliced = SLICE_MAX / self._question.workers_of(asked) if self._question.workers > SLICE_MAX else 1.0
        return sliced * asked.load_factor

    def _planned(self, asked: Asked) -> int:
        wanted = self._wanted(asked)
        return sum(copies(prompt, wanted, seed) for seed in self._question.seeds for prompt in self._prompts)

    def _run(self, planned: tuple[Asked, int], counted: Counted) -> Simulated:
        asked, seed = planned
        counter = _Counter(counted, self._progress.step)
        simulated = self._simulate(asked, seed, counter.one_more)
        counter.end()
        return simulated

    def _simulate(self, asked: Asked, seed: int, one_more: Callable[[], None]) -> Simulated:
        question, profile = self._question, self._profile(asked)
        workers = SLICE_MAX if question.workers > SLICE_MAX else question.workers_of(asked)
        workload = RecordedWorkload(
            self._prompts, self._ratios, profile,
            wanted=self._wanted(asked), seed=seed, mended=asked.template_fixed, block_tokens=self._block_tokens,
        )  # fmt: skip
        policy = Replay(self._policy(asked, workers, profile, seed), workload, profile, one_more)
        result = FleetRun(
            workload, policy, profile, workers=workers, good_s=question.good_s, block_tokens=self._block_tokens
        ).run()
        whole = question.workers_of(asked) / workers
        return Simulated(result, policy.prefill_s * whole * question.gpus_per_worker)

    def _policy(self, asked: Asked, workers: int, profile: GpuProfile, seed: int) -> Policy:
        rng = random.Random(seed)  # noqa: S311  repeatable, no secret
        name = self._question.policy_of(asked)
        if name == "tidemark":
            return Tidemark(workers, profile, rng=rng, watermark=self._question.watermark_of(asked))
        return POLICIES[name](workers, profile, rng)

    def _outcome(self, asked: Asked, runs: Sequence[Simulated], base: Sequence[Simulated] | None) -> Outcome:
        question, results = self._question, [run.result for run in runs]
        workers = question.workers_of(asked)
        price = question.gpu_price_per_h
        saved = None if base is None else _interval(
            [before.prefill_s - run.prefill_s for before, run in zip(base, runs, strict=True)]
        )  # fmt: skip
        return Outcome(
            name=asked.label,
            workers=workers,
            requests=_some([each.measured for each in results]),
            unfinished=_some([each.unfinished for each in results]),
            hit_token_share=_interval([each.hit_token_share for each in results]),
            ttft_p50_s=_interval([each.ttft_p50_s for each in results]),
            ttft_p95_s=_interval([each.ttft_p95_s for each in results]),
            goodput_share=_interval([each.good / each.measured if each.measured else None for each in results]),
            evictions_per_min=_some([each.evicted_blocks_per_min * workers for each in results]),
            gpu_seconds_prefill=_some([run.prefill_s for run in runs]),
            gpu_seconds_saved_against_as_it_is=saved,
            cost_per_h=None if price is None else price * question.gpus_per_worker * workers,
            note=self._note(asked),
        )

    def _note(self, asked: Asked) -> str:
        notes = []
        if asked.template_fixed and not self._mended:
            notes.append("No changing text in front of prompts was found in the recording.")
        if asked.shared_tier_gib:
            notes.append("A shared tier is not simulated.")
        return " ".join(notes)

    def _sampled(self) -> Sampled:
        requests = self._requests
        share = len(requests) / sum(1 / each.share for each in requests)
        words = "Every session was recorded."
        if share < 1:
            words = (
                f"{share:.0%} of the traffic was recorded, by whole sessions; copies of them, which share their heads, "
                "stand for the rest."
            )
        if self._too_long:
            words += f" {self._too_long:,} requests are longer than a worker's cache and left out."
        return Sampled(share=share, scaled=words, dropped=self._recording.head.dropped)


class _Progress:
    def __init__(self, told: Told, of: int) -> None:
        self._told = told
        self._of = of
        self._done = 0
        self.step = max(1, of // TOLD_STEPS)
        """Requests between two words."""
        self._last = ("", 0)

    def further(self, planned: tuple[Asked, int], requests: int) -> None:
        """So many requests more were simulated of this run."""
        asked, seed = planned
        self._done += requests
        self._last = (asked.label, seed)
        self._told(self._done, self._of, *self._last)

    def end(self) -> None:
        self._told(self._of, self._of, *self._last)


class _Counter:
    """Of one run: tells at its beginning, then every `step` requests."""

    def __init__(self, counted: Counted, step: int) -> None:
        self._counted = counted
        self._step = step
        self._more = 0
        counted(0)

    def one_more(self) -> None:
        self._more += 1
        if self._more == self._step:
            self.end()

    def end(self) -> None:
        self._counted(self._more)
        self._more = 0


def _grain(requests: Sequence[RecordedRequest]) -> int:
    """Tokens of a simulated cache's block: fine enough for the prompts, coarse enough to be quick."""
    mean = sum(each.prompt_tokens for each in requests) / len(requests)
    grain = BLOCK_TOKENS
    while grain > BLOCK_TOKENS_MIN and grain * BLOCKS_A_PROMPT > mean:
        grain //= 2
    return grain


def _measured(requests: Sequence[RecordedRequest]) -> Measured:
    known = [each for each in requests if each.cached_tokens is not None]
    prompt_tokens = sum(each.prompt_tokens for each in known)
    times = sorted(each.ttft_ms / 1_000 for each in requests if each.ttft_ms is not None)
    return Measured(
        requests=len(requests),
        hit_token_share=sum(each.cached_tokens or 0 for each in known) / prompt_tokens if prompt_tokens else None,
        ttft_p50_s=_quantile(times, 0.5),
        ttft_p95_s=_quantile(times, 0.95),
        since=requests[0].at,
        until=requests[-1].at,
    )


def _deviation(outcome: Outcome, measured: Measured) -> Deviation:
    return Deviation(
        hit_token_share=_minus(outcome.hit_token_share, measured.hit_token_share),
        ttft_p50_s=_minus(outcome.ttft_p50_s, measured.ttft_p50_s),
        ttft_p95_s=_minus(outcome.ttft_p95_s, measured.ttft_p95_s),
    )


def _minus(simulated: Interval | None, measured: float | None) -> float | None:
    return None if simulated is None or measured is None else simulated.mean - measured


def _interval(values: Sequence[float | None]) -> Interval | None:
    known = [value for value in values if value is not None]
    return _some(known) if known else None


def _some(values: Sequence[float]) -> Interval:
    return Interval(sum(values) / len(values), min(values), max(values))


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    """Nearest rank."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None

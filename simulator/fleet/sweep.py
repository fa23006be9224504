"""Many runs: every trace × workers × load × policy × seed, over several processes.

Each run is a function of its case alone, so results do not depend on how many processes there are.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context

from simulator.fleet.agents import AgentWorkload
from simulator.fleet.conversation import ConversationWorkload
from simulator.fleet.hardware import PROFILES, GpuProfile
from simulator.fleet.measure import RunResult
from simulator.fleet.policies import POLICIES
from simulator.fleet.run import FleetRun
from simulator.fleet.workload import Workload
from simulator.replay import ConversationRequest, WekaTurn, load_conversation, load_weka

TRACES = ("conversation", "weka")

Progress = Callable[[int, int], None]
"""Told how many runs are done, of how many."""


@dataclass(frozen=True, slots=True, order=True)
class Case:
    trace: str
    workers: int
    load: float
    policy: str
    seed: int
    profile: str
    requests: int

    @property
    def setup(self) -> tuple[str, int, float]:
        return self.trace, self.workers, self.load


@dataclass(frozen=True, slots=True)
class Grid:
    traces: Sequence[str]
    workers: Sequence[int]
    loads: Sequence[float]
    policies: Sequence[str]
    seeds: Sequence[int]
    profile: str
    requests: int
    """A run, at the rate the load means; a closed loop sends fewer where answers come late."""

    def cases(self) -> Iterator[Case]:
        axes = itertools.product(self.traces, self.workers, self.loads, self.policies, self.seeds)
        for trace, workers, load, policy, seed in axes:
            yield Case(trace, workers, load, policy, seed, self.profile, self.requests)


def sweep(grid: Grid, *, processes: int, progress: Progress = lambda done, total: None) -> dict[Case, RunResult]:
    """Results by case, in the grid's order. Raises what a run raises."""
    cases = list(grid.cases())
    if processes <= 1:
        results: dict[Case, RunResult] = {}
        for case in cases:
            results[case] = run_case(case)
            progress(len(results), len(cases))
        return results
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as executor:
        return _collect(executor, cases, progress)


def run_case(case: Case) -> RunResult:
    """Deterministic: the workload depends on the seed, the policy's dice on seed and policy."""
    profile = PROFILES[case.profile]
    policy = POLICIES[case.policy](case.workers, profile, random.Random(f"{case.policy}/{case.seed}"))  # noqa: S311  repeatable
    return FleetRun(workload_of(case, profile), policy, profile, workers=case.workers).run()


def workload_of(case: Case, profile: GpuProfile) -> Workload:
    if case.trace == "conversation":
        return ConversationWorkload(
            _conversation(), profile, workers=case.workers, load=case.load, requests=case.requests, seed=case.seed
        )
    return AgentWorkload(_weka(), profile, workers=case.workers, load=case.load, requests=case.requests, seed=case.seed)


def _collect(executor: Executor, cases: list[Case], progress: Progress) -> dict[Case, RunResult]:
    futures = {executor.submit(run_case, case): case for case in cases}
    done: dict[Case, RunResult] = {}
    for future in as_completed(futures):
        done[futures[future]] = future.result()
        progress(len(done), len(cases))
    return {case: done[case] for case in cases}


@cache
def _conversation() -> list[ConversationRequest]:
    return load_conversation()


@cache
def _weka() -> list[list[WekaTurn]]:
    return load_weka()

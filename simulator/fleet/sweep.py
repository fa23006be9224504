"""Many runs: every trace × workers × load × policy × seed, over several processes.

Each run is a function of its case alone, so results do not depend on how many processes there are.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path

from simulator.fleet.agents import AgentWorkload
from simulator.fleet.calibrated_profile import profile_of
from simulator.fleet.conditions import IDEAL, Conditions
from simulator.fleet.conversation import ConversationWorkload
from simulator.fleet.generated.kinds import KINDS, Kind
from simulator.fleet.generated.sessions import SessionWorkload
from simulator.fleet.hardware import GpuProfile
from simulator.fleet.measure import RunResult
from simulator.fleet.policies import POLICIES
from simulator.fleet.run import FleetRun
from simulator.fleet.workload import Workload
from simulator.replay import CONVERSATION_LATER, ConversationRequest, WekaTurn, load_conversation, load_weka

TRACES = ("conversation", "weka")
"""Recorded."""
WORKLOADS = (*TRACES, *KINDS)
"""Recorded, and made from parameters (`generated/kinds.py`)."""

FILE = "file:"
"""Before the path of a trace in Mooncake's format, gzipped."""

SEEN, UNSEEN = "seen", "unseen"
PARTS = (SEEN, UNSEEN)
"""Of each trace: what the routing core was designed with, and what was kept from it. Conversation: its first 20 minutes
and the 40 after them; WEKA: the first and the second half of its sessions; generated workloads: other dice."""

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
    part: str = SEEN
    conditions: Conditions = IDEAL

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
    part: str = SEEN
    conditions: Conditions = IDEAL

    def cases(self) -> Iterator[Case]:
        axes = itertools.product(self.traces, self.workers, self.loads, self.policies, self.seeds)
        for trace, workers, load, policy, seed in axes:
            yield Case(trace, workers, load, policy, seed, self.profile, self.requests, self.part, self.conditions)


def sweep(grid: Grid, *, processes: int, progress: Progress = lambda done, total: None) -> dict[Case, RunResult]:
    """Results by case, in the grid's order. Raises what a run raises."""
    return run_cases(list(grid.cases()), processes=processes, progress=progress)


def run_cases(
    cases: Sequence[Case],
    *,
    processes: int,
    progress: Progress = lambda done, total: None,
    known: Mapping[Case, RunResult] | None = None,
    keep: Callable[[Case, RunResult], None] = lambda case, result: None,
) -> dict[Case, RunResult]:
    """Results by case, in the cases' order. `known` ones are not run again; `keep` is told each that was."""
    done = {case: known[case] for case in cases if case in known} if known else {}
    for case, result in _run_all([case for case in cases if case not in done], processes):
        keep(case, result)
        done[case] = result
        progress(len(done), len(cases))
    return {case: done[case] for case in cases}


def _run_all(cases: Sequence[Case], processes: int) -> Iterator[tuple[Case, RunResult]]:
    """As they finish."""
    if processes <= 1:
        yield from ((case, run_case(case)) for case in cases)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as executor:
        futures = {executor.submit(run_case, case): case for case in cases}
        for future in as_completed(futures):
            yield futures[future], future.result()


def run_case(case: Case) -> RunResult:
    """Deterministic: the workload depends on the seed, the policy's dice on seed and policy."""
    profile = profile_of(case.profile)
    dice = random.Random(f"{case.policy}/{case.seed}")  # noqa: S311  repeatable
    policy = POLICIES[case.policy](case.workers, profile, dice, case.conditions)
    return FleetRun(
        workload_of(case, profile),
        policy,
        profile,
        workers=case.workers,
        conditions=case.conditions,
        seed=case.seed,
    ).run()


def workload_of(case: Case, profile: GpuProfile) -> Workload:
    if case.trace == "conversation" or case.trace.startswith(FILE):
        rows = file_rows(case.trace) if case.trace.startswith(FILE) else conversation_rows(case.part)
        requests = min(case.requests, len(rows))
        return ConversationWorkload(
            rows, profile, workers=case.workers, load=case.load, requests=requests, seed=case.seed
        )
    if case.trace in KINDS:
        return generated(KINDS[case.trace](), case, profile)
    sessions = weka_sessions(case.part)
    return AgentWorkload(
        sessions, profile, workers=case.workers, load=case.load, requests=case.requests, seed=case.seed
    )


def generated(kind: Kind, case: Case, profile: GpuProfile) -> Workload:
    rng = random.Random(f"{case.trace}/{case.part}/{case.seed}")  # noqa: S311  repeatable, no secret
    return SessionWorkload(
        kind.sessions(rng), profile, workers=case.workers, load=case.load, requests=case.requests, rng=rng
    )


@cache
def file_rows(trace: str) -> list[ConversationRequest]:
    """Of `file:PATH`, a trace in Mooncake's format. Raises OSError or msgspec.DecodeError."""
    return load_conversation(Path(trace.removeprefix(FILE)))


@cache
def conversation_rows(part: str) -> list[ConversationRequest]:
    return load_conversation() if part == SEEN else load_conversation(CONVERSATION_LATER)


@cache
def weka_sessions(part: str) -> list[list[WekaTurn]]:
    sessions = load_weka()
    half = len(sessions) // 2
    return sessions[:half] if part == SEEN else sessions[half:]

"""What a run's conditions do: each by its limiting value, all of them deterministic."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from router.core.model import Outcome, Reservation
from simulator.fleet.baselines import LeastOutstanding, RoundRobin
from simulator.fleet.churn import departures
from simulator.fleet.conditions import IDEAL, Conditions, Departure, Tier
from simulator.fleet.exact_tidemark import ExactTidemark
from simulator.fleet.hardware import H200_8B, GpuProfile
from simulator.fleet.measure import RunResult
from simulator.fleet.policies import POLICIES
from simulator.fleet.policy import Choice, Policy, WorkerView
from simulator.fleet.run import POLL_S, FleetRun
from simulator.fleet.sweep import Case, run_case, workload_of
from simulator.fleet.tidemark import Tidemark
from simulator.fleet.workload import BLOCK_TOKENS, Request

SMALL = replace(H200_8B, kv_capacity_tokens=160_000)
"""Its cache turns over with a few hundred prompts."""
CASE = Case("kb8k", 3, 0.7, "tidemark", 1, H200_8B.name, 240)
INFINITE = Tier(gib=math.inf, gib_per_s=math.inf, setup_ms=0.0)


class Listed:
    """Requests at stated moments, open loop."""

    demand_s = 1.0

    def __init__(self, requests: list[Request]) -> None:
        self._requests = requests
        self.duration_s = requests[-1].arrival_s + 1.0

    def first(self) -> list[Request]:
        return self._requests

    def after(self, request: Request, finished_s: float) -> Request | None:
        return None


def prompts(chains: Sequence[Sequence[int]], *, every_s: float = 10.0) -> Listed:
    """One after the other; the number of a prompt is what its client would send as session id."""
    made = [
        Request(number, number * every_s, len(chain) * BLOCK_TOKENS + 9, 4, list(chain), list(chain), number)
        for number, chain in enumerate(chains, 1)
    ]
    return Listed(made)


def fleet(
    policy: Policy, conditions: Conditions, *, workers: int = 3, profile: GpuProfile = SMALL, case: Case = CASE
) -> FleetRun:
    workload = workload_of(replace(case, workers=workers), profile)
    return FleetRun(workload, policy, profile, workers=workers, conditions=conditions, seed=1)


def exact(conditions: Conditions) -> ExactTidemark:
    return ExactTidemark(3, SMALL, rng=random.Random(1), conditions=conditions)


def told_and_held(conditions: Conditions) -> tuple[ExactTidemark, list[set[int]], list[set[int]], RunResult]:
    """What a router's index says of each worker at the end, and what the worker caches."""
    policy = exact(conditions)
    run = fleet(policy, conditions)
    result = run.run()
    held = [set(view.engine.cache.names()) for view in run._workers]
    names = set().union(*held) | {name for request in workload_of(CASE, SMALL).first() for name in request.chain}
    told = [
        {name for name in names if any(entry.holder.worker == worker for entry in policy._blocks.entries(name))}
        for worker in policy.workers
    ]
    return policy, told, held, result


def test_events_that_never_arrive_are_as_good_as_none() -> None:
    late = Conditions(event_delay_s=math.inf)
    without = Tidemark(3, SMALL, rng=random.Random(1))
    assert fleet(exact(late), late).run() == fleet(without, IDEAL).run()


def test_a_router_knows_what_every_worker_caches() -> None:
    policy, told, held, result = told_and_held(IDEAL)
    assert all(stream.exact for stream in policy.followers()[0])
    assert told == held and all(held)
    assert result.evicted_blocks_per_min > 0


def test_lost_events_that_are_replayed_are_not_lost() -> None:
    losing = Conditions(event_loss=0.2, event_delay_s=0.02)
    policy, told, held, result = told_and_held(losing)
    streams = policy.followers()[0]
    assert sum(stream.counts.gaps for stream in streams) > 10
    # A worker whose last batch was lost counts as silent until its next one, though the replay brought it.
    assert not any(stream.reason for stream in streams) and told == held
    ideal = fleet(exact(IDEAL), IDEAL).run()
    assert result.hit_token_share == pytest.approx(ideal.hit_token_share, abs=0.03)


def test_lost_events_without_replay_leave_what_was_sent_where() -> None:
    deaf = Conditions(event_loss=0.2, event_replay=False)
    policy, told, _, result = told_and_held(deaf)
    assert all(stream.reason == "lost" for stream in policy.followers()[0]) and not any(told)
    approximate = fleet(Tidemark(3, SMALL, rng=random.Random(1)), IDEAL).run()
    assert result.finished == result.requests
    assert result.hit_token_share == pytest.approx(approximate.hit_token_share, abs=0.03)


class LooksAtSamples(LeastOutstanding):
    def __init__(self) -> None:
        super().__init__()
        self.ages_s: list[float] = []

    def choose(self, request: Request, workers: list[WorkerView], now: float) -> Choice:
        self.ages_s += [now - worker.sample.at for worker in workers if worker.sample is not None]
        return super().choose(request, workers, now)


@pytest.mark.parametrize("delay_s", [0.0, 1.5])
def test_metrics_are_as_old_as_the_scrape_makes_them(delay_s: float) -> None:
    policy = LooksAtSamples()
    fleet(policy, Conditions(scrape_delay_s=delay_s)).run()
    assert delay_s <= min(policy.ages_s) and max(policy.ages_s) <= delay_s + POLL_S + 1e-9


def test_equal_texts_of_two_tenants_share_nothing() -> None:
    """Prompts 1, 3 and 5 are of one tenant, 2 and 4 of the other."""
    workload = prompts([[7, 8, 9]] * 5)
    for tenants, hits in ((1, 4), (2, 3), (5, 0)):
        conditions = Conditions(tenants=tenants)
        run = FleetRun(workload, RoundRobin(), SMALL, workers=1, conditions=conditions)
        run.run()
        cached = [each.cached_tokens for each in run._measured.sequences]
        assert cached.count(3 * BLOCK_TOKENS) == hits and cached.count(0) == 5 - hits


def _shared(tier: Tier, *, workers: int, profile: GpuProfile = H200_8B) -> RunResult:
    """Prompts over few heads, far apart in time, so that none waits for another."""
    dice = random.Random(3)
    chains = [[head * 100 + depth for depth in range(12)] + [10_000 + number] for number in range(60)
              for head in [dice.randrange(9)]]  # fmt: skip
    conditions = Conditions(tier=tier)
    return FleetRun(prompts(chains), RoundRobin(), profile, workers=workers, conditions=conditions).run()


def test_a_tier_without_bounds_serves_as_one_cache_of_the_whole_fleet() -> None:
    one_big = _shared(IDEAL.tier, workers=1)
    apart, tiered = _shared(IDEAL.tier, workers=4), _shared(INFINITE, workers=4)
    assert one_big.hit_token_share and apart.hit_token_share and tiered.hit_token_share
    assert tiered.hit_token_share == pytest.approx(one_big.hit_token_share)
    assert tiered.hit_token_share > apart.hit_token_share + 0.1
    assert tiered.loaded_token_share == pytest.approx(tiered.hit_token_share - apart.hit_token_share)


def test_a_tier_is_read_only_where_that_is_sooner_and_keeps_what_fits() -> None:
    apart, slow = _shared(IDEAL.tier, workers=4), _shared(replace(INFINITE, gib_per_s=0.01), workers=4)
    assert replace(slow, loaded_token_share=0.0) == apart and slow.loaded_token_share == 0.0
    small, large = (_shared(replace(INFINITE, gib=gib), workers=4) for gib in (1.0, 4.0))
    assert apart.hit_token_share < small.hit_token_share < large.hit_token_share  # type: ignore[operator]


class KeepsPredictions(ExactTidemark):
    def __init__(self, conditions: Conditions) -> None:
        super().__init__(2, H200_8B, rng=random.Random(1), conditions=conditions)
        self.loads: list[tuple[int, int | None]] = []

    def answered(self, reservation: Reservation, outcome: Outcome, now: float) -> None:
        super().answered(reservation, outcome, now)
        self.loads.append((reservation.decision.loaded_tokens, outcome.cached_tokens))


def test_the_core_counts_on_what_the_tier_holds() -> None:
    """Both workers lose their caches behind the first prompt, so that only the tier has it."""
    emptied = (Departure(15.0, 0, 0.5), Departure(16.0, 1, 0.5))
    conditions = Conditions(tier=replace(INFINITE, gib=50.0), departures=emptied)
    policy = KeepsPredictions(conditions)
    FleetRun(prompts([[1, 2, 3, 4, 5, 6]] * 3), policy, H200_8B, workers=2, conditions=conditions).run()
    whole = 6 * BLOCK_TOKENS
    assert policy.loads == [(0, 0), (whole, whole), (0, whole)]


@pytest.mark.parametrize("policy", POLICIES)
def test_requests_of_a_worker_that_dies_are_served_elsewhere(policy: str) -> None:
    dying = Conditions(departures=(Departure(4.0, 0, 5.0), Departure(6.0, 2, 4.0), Departure(7.0, 1, 6.0)))
    result = run_case(replace(CASE, policy=policy, load=0.9, conditions=dying))
    assert result.failed_over > 0
    assert result.finished == result.requests == 240


def test_a_worker_that_is_away_gets_nothing_and_comes_back_empty() -> None:
    class Watches(RoundRobin):
        seen: set[tuple[int, ...]] = set()

        def choose(self, request: Request, workers: list[WorkerView], now: float) -> Choice:
            self.seen.add(tuple(worker.index for worker in workers))
            if 40.0 <= now < 41.0:
                assert workers[1].engine.cache.resident_blocks == 0
            return super().choose(request, workers, now)

    policy = Watches()
    chains = [[number % 4 * 10 + depth for depth in range(8)] for number in range(40)]
    conditions = Conditions(departures=(Departure(19.0, 1, 20.5),))
    FleetRun(prompts(chains, every_s=1.0), policy, SMALL, workers=3, conditions=conditions).run()
    assert policy.seen == {(0, 1, 2), (0, 2)}


def test_workers_leave_at_the_rate_that_is_asked_for() -> None:
    conditions = Conditions(leaves_per_h=6.0, away_s=60.0)
    found = list(departures(conditions, workers=50, until_s=36_000.0, rng=random.Random(2)))
    cycle_s = 3_600 / 6 + 60
    assert len(found) / 50 == pytest.approx(36_000 / cycle_s, rel=0.05)


@pytest.mark.parametrize("policy", ["tidemark_exact", "tidemark_4_routers"])
def test_a_seed_decides_all_of_it(policy: str) -> None:
    conditions = Conditions(0.5, 0.1, 0.1, True, 60.0, 4.0, (), 2, Tier(20.0))
    case = replace(CASE, policy=policy, conditions=conditions)
    first = run_case(case)
    assert first == run_case(case) and first.failed_over > 0
    assert first != run_case(replace(case, seed=2))


@pytest.mark.parametrize(
    "wrong",
    [
        Conditions(event_loss=1.0), Conditions(scrape_delay_s=-1), Conditions(scrape_delay_s=math.inf),
        Conditions(tenants=0), Conditions(tier=Tier(1, 0)), Conditions(departures=(Departure(1, 0, 0),)),
    ],
)  # fmt: skip
def test_conditions_that_cannot_be_are_refused(wrong: Conditions) -> None:
    with pytest.raises(ValueError, match=r"number|share|away|tenant"):
        wrong.check()

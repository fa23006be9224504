"""The policies by name. A new instance for each run: they keep state."""

from __future__ import annotations

import random
from typing import Protocol

from simulator.fleet.baselines import LeastOutstanding, LongestPrefix, PowerOfTwo, RingWatermark, RoundRobin
from simulator.fleet.conditions import IDEAL, Conditions
from simulator.fleet.exact_tidemark import ExactTidemark
from simulator.fleet.hardware import GpuProfile
from simulator.fleet.oracle import GreedyOracle
from simulator.fleet.peers import BlockCost, CacheAware, WeightedScorers
from simulator.fleet.policy import Policy
from simulator.fleet.routers import Routers
from simulator.fleet.tidemark import Tidemark

ORACLE = "oracle"

ROUTERS = 4


class Make(Protocol):
    def __call__(self, workers: int, profile: GpuProfile, rng: random.Random, conditions: Conditions = ...) -> Policy:
        """`conditions`: those of the run, as far as an operator would have told a router of them."""


POLICIES: dict[str, Make] = {
    "tidemark": lambda workers, profile, rng, conditions=IDEAL: Tidemark(
        workers, profile, rng=rng, conditions=conditions
    ),
    "tidemark_exact": lambda workers, profile, rng, conditions=IDEAL: ExactTidemark(
        workers, profile, rng=rng, conditions=conditions
    ),
    "tidemark_4_routers": lambda workers, profile, rng, conditions=IDEAL: Routers(
        [Tidemark(workers, profile, rng=rng, conditions=conditions) for _ in range(ROUTERS)], rng=rng
    ),
    "round_robin": lambda workers, profile, rng, conditions=IDEAL: RoundRobin(),
    "least_outstanding": lambda workers, profile, rng, conditions=IDEAL: LeastOutstanding(),
    "power_of_two": lambda workers, profile, rng, conditions=IDEAL: PowerOfTwo(rng),
    "ring_watermark": lambda workers, profile, rng, conditions=IDEAL: RingWatermark(workers),
    "longest_prefix": lambda workers, profile, rng, conditions=IDEAL: LongestPrefix(),
    "cache_aware": lambda workers, profile, rng, conditions=IDEAL: CacheAware(),
    "weighted_scorers": lambda workers, profile, rng, conditions=IDEAL: WeightedScorers(rng),
    "block_cost": lambda workers, profile, rng, conditions=IDEAL: BlockCost(rng),
    ORACLE: lambda workers, profile, rng, conditions=IDEAL: GreedyOracle(),
}

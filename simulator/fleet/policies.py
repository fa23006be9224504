"""The policies by name. A new instance for each run: they keep state."""

from __future__ import annotations

import random
from collections.abc import Callable

from simulator.fleet.baselines import LeastOutstanding, LongestPrefix, PowerOfTwo, RingWatermark, RoundRobin
from simulator.fleet.hardware import GpuProfile
from simulator.fleet.oracle import GreedyOracle
from simulator.fleet.peers import BlockCost, CacheAware, WeightedScorers
from simulator.fleet.policy import Policy
from simulator.fleet.routers import Routers
from simulator.fleet.tidemark import Tidemark

ORACLE = "oracle"

ROUTERS = 4

Make = Callable[[int, GpuProfile, random.Random], Policy]

POLICIES: dict[str, Make] = {
    "tidemark": lambda workers, profile, rng: Tidemark(workers, profile, rng=rng),
    "tidemark_4_routers": lambda workers, profile, rng: Routers(
        [Tidemark(workers, profile, rng=rng) for _ in range(ROUTERS)], rng=rng
    ),
    "round_robin": lambda workers, profile, rng: RoundRobin(),
    "least_outstanding": lambda workers, profile, rng: LeastOutstanding(),
    "power_of_two": lambda workers, profile, rng: PowerOfTwo(rng),
    "ring_watermark": lambda workers, profile, rng: RingWatermark(workers),
    "longest_prefix": lambda workers, profile, rng: LongestPrefix(),
    "cache_aware": lambda workers, profile, rng: CacheAware(),
    "weighted_scorers": lambda workers, profile, rng: WeightedScorers(rng),
    "block_cost": lambda workers, profile, rng: BlockCost(rng),
    ORACLE: lambda workers, profile, rng: GreedyOracle(),
}

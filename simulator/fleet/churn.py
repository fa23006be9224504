"""When workers leave and come back: at stated moments, or at random ones of a rate. Deterministic by its dice."""

from __future__ import annotations

import random
from collections.abc import Iterator

from simulator.fleet.conditions import Conditions, Departure


def departures(conditions: Conditions, *, workers: int, until_s: float, rng: random.Random) -> Iterator[Departure]:
    """In no order. A worker's random absences do not overlap; a stated one while it is away changes nothing."""
    yield from (each for each in conditions.departures if each.worker < workers and each.at_s <= until_s)
    if not conditions.leaves_per_h:
        return
    for worker in range(workers):
        at_s = rng.expovariate(conditions.leaves_per_h / 3_600)
        while at_s <= until_s:
            yield Departure(at_s, worker, conditions.away_s)
            at_s += conditions.away_s + rng.expovariate(conditions.leaves_per_h / 3_600)

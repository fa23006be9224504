"""What a fleet has to live with beside its traffic: late and lost events, late metrics, workers that leave, salts, a
shared tier. The default of each is off, or ideal, so that figures of runs without them mean what they meant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

POLL_DELAY_S = 0.3
"""From a worker's metrics to the router's table: scrape, store, next read of the live channel."""


@dataclass(frozen=True, slots=True, order=True)
class Departure:
    """A worker dies with all it has under way and comes back with an empty cache."""

    at_s: float
    worker: int
    """Index; of a fleet without it nothing happens."""
    away_s: float


@dataclass(frozen=True, slots=True, order=True)
class Tier:
    """A store of KV that all workers share: what one computed, any of them can load."""

    gib: float = 0.0
    """Capacity, least recently used first out; 0 = there is none."""
    gib_per_s: float = 10.0
    setup_ms: float = 1.0


NO_TIER = Tier()


@dataclass(frozen=True, slots=True, order=True)
class Conditions:
    scrape_delay_s: float = POLL_DELAY_S
    event_delay_s: float = 0.0
    """From a worker's cache to a router that follows its KV events; a replay takes it there and back."""
    event_loss: float = 0.0
    """Share of the batches that do not arrive. Each router loses its own."""
    event_replay: bool = True
    """Whether a router that sees a gap can ask for what it missed."""
    leaves_per_h: float = 0.0
    """A worker, at random moments."""
    away_s: float = 30.0
    """Of each of those."""
    departures: tuple[Departure, ...] = ()
    """At stated moments."""
    tenants: int = 1
    """Sessions are divided among so many, each with a salt of its own: equal texts of two share no block."""
    tier: Tier = NO_TIER

    @property
    def churns(self) -> bool:
        return self.leaves_per_h > 0 or bool(self.departures)

    def check(self) -> None:
        """Raises ValueError for what cannot be."""
        spans = (self.scrape_delay_s, self.event_delay_s, self.leaves_per_h, self.tier.gib, self.tier.setup_ms)
        if any(math.isnan(each) or each < 0 for each in spans) or math.isinf(self.scrape_delay_s):
            raise ValueError("a delay, a rate or a size is a number that is not below 0")
        if not 0 <= self.event_loss < 1:
            raise ValueError("the share of lost events is between 0 and below 1")
        if self.away_s <= 0 or any(each.away_s <= 0 or each.at_s < 0 or each.worker < 0 for each in self.departures):
            raise ValueError("a worker that leaves is away for some time")
        if self.tenants < 1 or self.tier.gib_per_s <= 0:
            raise ValueError("there is at least one tenant, and a tier has a bandwidth")


IDEAL = Conditions()

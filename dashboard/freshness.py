"""The age that every panel states of its figures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings

from dashboard.data import PageData

MISSED_POLLS = 3
STALE_AFTER_S = 30.0
"""From here on figures describe the past: grey, whatever they say."""


@dataclass(frozen=True, slots=True)
class Freshness:
    """When the newest figure of a panel was taken. `at` None: nothing ever arrived."""

    at: datetime | None
    source: str
    live: bool
    """False on a page whose range ends in the past: age then says nothing."""
    late_after_s: float
    stale_after_s: float = STALE_AFTER_S

    @property
    def unix_s(self) -> float | None:
        return self.at.timestamp() if self.at else None


def of_requests(data: PageData) -> Freshness:
    """Figures shipped by routers."""
    return _of_age(data, data.tiles.data_age_s, "routers")


def of_routers(data: PageData) -> Freshness:
    """The same, for pages that show no tiles of the fleet."""
    ages = [source.age_s for source in data.freshness if source.kind == "router"]
    return _of_age(data, _youngest(ages), "routers")


def of_polls(data: PageData) -> Freshness:
    """Figures of the workers' metrics pages: as old as the oldest good poll, or the last when no worker answers."""
    age_s = data.tiles.poll_age_s
    if age_s is None:
        age_s = _youngest(source.age_s for source in data.freshness if source.kind == "polls")
    return _of_age(data, age_s, "polls")


def of_events(data: PageData) -> Freshness:
    """Figures of the KV-event subscriber."""
    ages = [source.age_s for source in data.freshness if source.kind == "kv-events"]
    return _of_age(data, _youngest(ages), "KV events")


def of_ages(data: PageData, ages: Iterable[float | None], source: str) -> Freshness:
    """As old as the youngest of these figures."""
    return _of_age(data, _youngest(ages), source)


def of_source(data: PageData, kind: str, words: str) -> Freshness:
    """Of the sources of one kind, the one that spoke last."""
    return _of_age(data, _youngest(source.age_s for source in data.freshness if source.kind == kind), words)


def _youngest(ages: Iterable[float | None]) -> float | None:
    return min((age for age in ages if age is not None), default=None)


def _of_age(data: PageData, age_s: float | None, source: str) -> Freshness:
    return Freshness(
        at=None if age_s is None else data.now - timedelta(seconds=age_s),
        source=source,
        live=data.state.live,
        late_after_s=MISSED_POLLS * settings.CONFIG.poll_interval_s,
    )

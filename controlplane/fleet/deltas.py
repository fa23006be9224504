"""From two pages' cumulative counters to increases. Pure, and never negative.

A counter that fell, or a process that started anew, is a reset: nothing can be said about the time between, so no
increase is reported and the current values become the base. A counter missing from either page is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SPAN_S_MAX = 60.0
"""Increases over a longer time belong to no bucket of the present: they are dropped and the base moves on."""
START_TOLERANCE_S = 1.5
"""`process_start_time_seconds` is derived from the boot time and may move by a second when the clock is set."""


@dataclass(frozen=True, slots=True)
class Base:
    """Counters of an earlier page."""

    at: float
    """Unix seconds of the scrape."""
    counters: Mapping[str, float]
    started_at: float | None = None


@dataclass(frozen=True, slots=True)
class Increases:
    values: dict[str, float] = field(default_factory=dict)
    """Counter → increase ≥ 0, for counters known on both pages."""
    known: bool = False
    """False when there was no usable predecessor: then `values` is empty."""
    reset: bool = False
    restarted: bool = False
    """The reset came with another process start time."""


def increases(base: Base | None, current: Base) -> Increases:
    if base is None or not base.counters or not current.counters:
        return Increases()
    if _restarted(base, current):
        return Increases(reset=True, restarted=True)
    shared = base.counters.keys() & current.counters.keys()
    if any(current.counters[name] < base.counters[name] for name in shared):
        return Increases(reset=True)
    if not 0 < current.at - base.at <= SPAN_S_MAX:
        return Increases()
    return Increases(values={name: current.counters[name] - base.counters[name] for name in shared}, known=True)


def _restarted(base: Base, current: Base) -> bool:
    if base.started_at is None or current.started_at is None:
        return False
    return abs(current.started_at - base.started_at) > START_TOLERANCE_S


def per_bucket(values: Mapping[str, float], prefix: str) -> dict[str, int]:
    """Increases of cumulative `le` buckets under `prefix` → increases of single buckets, zero ones left out.

    `{"ttft_le:0.1": 3, "ttft_le:+Inf": 5}` → `{"0.1": 3, "+Inf": 2}`.
    """
    bounds = sorted((float(name[len(prefix) :]), name) for name in values if name.startswith(prefix))
    counts: dict[str, int] = {}
    below = 0.0
    for _, name in bounds:
        count = round(values[name] - below)
        below = max(below, values[name])
        if count > 0:
            counts[name[len(prefix) :]] = count
    return counts

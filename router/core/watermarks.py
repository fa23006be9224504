"""KV-use hysteresis (S0.4): at `high` a worker takes no NEW prefixes, at `low` it takes them again.

    use ≥ high           → full
    use ≤ low            → open (C41: one fresh healthy sample is enough)
    between, or unknown  → as before

A change waits until `dwell_s` has passed since the last one. Each worker keeps one state for each watermark in force,
since a namespace may have its own. Memory: O(workers × distinct watermarks); `observe` is O(distinct watermarks).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from router.contract.live import LIVE_STALE_AFTER_S, KvLive, WorkerLive
from router.contract.snapshot import Watermark

CHURN_WINDOW_S: Final = 60.0
"""A cache that is turned over within this time is under full pressure: for the score when its blocks are evicted, for
the watermarks when they are stored again after an eviction."""


def watermark_use(worker: WorkerLive | None, kv: KvLive | None, *, now: float) -> float | None:
    """KV use in 0…1 as the watermarks see it, None when no fresh figure is known.

    The greater of the blocks held by running requests (`kv_use`) and the thrash pressure. Occupancy alone does not
    count, nor do evictions: a prefix cache at work is full and drops what nobody asks for again.
    """
    figures: list[float] = []
    if worker is not None and _fresh(worker.at, now) and worker.kv_use is not None and math.isfinite(worker.kv_use):
        figures.append(worker.kv_use)
    pressure = thrash_pressure(kv, now=now)
    if pressure is not None:
        figures.append(pressure)
    return min(max(max(figures), 0.0), 1.0) if figures else None


def churn_pressure(kv: KvLive | None, *, now: float) -> float | None:
    """occupancy × min(1, share of the cache evicted in CHURN_WINDOW_S): 0…1, None when unknown or stale."""
    return None if kv is None else _pressure(kv, kv.evictions_per_s, now)


def thrash_pressure(kv: KvLive | None, *, now: float) -> float | None:
    """The same of blocks that came back after their eviction: the cache is too small for what it is asked."""
    return None if kv is None else _pressure(kv, kv.restores_per_s, now)


def _pressure(kv: KvLive, blocks_per_s: float | None, now: float) -> float | None:
    if not _fresh(kv.at, now) or not kv.capacity_blocks or kv.resident_blocks is None:
        return None
    if blocks_per_s is None or not math.isfinite(blocks_per_s):
        return None
    occupancy = min(kv.resident_blocks / kv.capacity_blocks, 1.0)
    turnover = min(blocks_per_s * CHURN_WINDOW_S / kv.capacity_blocks, 1.0)
    return max(occupancy * turnover, 0.0)


@dataclass(slots=True)
class _Mark:
    full: bool = False
    changed_at: float = -math.inf


@dataclass(slots=True)
class Watermarks:
    """The hysteresis states of one worker."""

    _marks: dict[Watermark, _Mark] = field(default_factory=dict)
    _use: float | None = None
    _use_at: float = -math.inf

    @property
    def use(self) -> float | None:
        """The last sample, however old."""
        return self._use

    def observe(self, use: float | None, *, now: float) -> None:
        """Take a sample; None (unknown or stale) keeps every state."""
        if use is None:
            return
        self._use, self._use_at = use, now
        for watermark, mark in self._marks.items():
            _settle(mark, watermark, use, now)

    def full(self, watermark: Watermark) -> bool:
        """Whether the worker takes no new prefixes under this watermark."""
        mark = self._marks.get(watermark)
        if mark is None:
            mark = self._marks[watermark] = _Mark()
            if self._use is not None:
                _settle(mark, watermark, self._use, self._use_at)
        return mark.full

    def fresh(self, now: float) -> bool:
        return _fresh(self._use_at, now)

    def keep(self, in_force: Iterable[Watermark]) -> None:
        """Forget the states of watermarks that no policy names any more."""
        wanted = set(in_force)
        self._marks = {watermark: mark for watermark, mark in self._marks.items() if watermark in wanted}


def _settle(mark: _Mark, watermark: Watermark, use: float, now: float) -> None:
    wanted = True if use >= watermark.high else False if use <= watermark.low else mark.full
    if wanted != mark.full and now - mark.changed_at >= watermark.dwell_s:
        mark.full, mark.changed_at = wanted, now


def _fresh(at: float, now: float) -> bool:
    return now - at <= LIVE_STALE_AFTER_S

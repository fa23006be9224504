"""Turns one worker's second into what is shipped and what routers read. Pure; one instance a worker."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from controlplane.fleet.kv_events.tracker import CacheTracker
from router.contract.live import KvLive
from router.contract.telemetry import EVICTS, KvRow

EVICTION_WINDOW_S = 10
"""KvLive.evictions_per_s and restores_per_s are means over this many one-second reports."""
SILENT_AFTER_S = 10.0
"""Without an event for this long while the worker computes prompts, the publisher is taken to be silent (C15).
Longer than polls and reloads lag together."""
SILENT_TOKENS_MIN = 1024
"""Computed prompt tokens that must have led to stored blocks: above every usual block size and tail."""


@dataclass(frozen=True, slots=True)
class Activity:
    """What polls say of the worker, for judging silence."""

    computed_tokens: float | None = None
    """Cumulative prompt tokens the worker computed itself; None = unknown."""
    capacity_blocks: int | None = None


class Reporter:
    def __init__(self, worker_id: str) -> None:
        self.worker_id = worker_id
        self.activity = Activity()
        self._removed: deque[int] = deque(maxlen=EVICTION_WINDOW_S)
        self._restored: deque[int] = deque(maxlen=EVICTION_WINDOW_S)
        self._heard_at = 0.0
        self._computed_base: float | None = None

    def heard(self, *, at: float) -> None:
        """A batch arrived."""
        self._heard_at = at

    def note_activity(self, activity: Activity, *, at: float) -> None:
        """Fresh figures of the polls. Those that may speak of the time before the last event are the base of silence;
        so is a counter that fell, which belongs to another life of the worker."""
        computed, base = activity.computed_tokens, self._computed_base
        if base is None or computed is None or computed < base or at - self._heard_at <= SILENT_AFTER_S:
            self._computed_base = computed
        self.activity = activity

    def report(self, tracker: CacheTracker, *, at: float, connected: bool) -> tuple[KvRow, KvLive]:
        """The second that begins at `at`. A count that is not exact, or that nobody vouches for, is None."""
        counts = tracker.take_counts()
        state = self._state(tracker, at, connected)
        resident = tracker.resident_blocks if state == "live" else None
        self._removed.append(counts.removed)
        self._restored.append(counts.restored)
        counted = state in ("live", "degraded")
        row = KvRow(
            worker=self.worker_id,
            stored_blocks=counts.stored,
            removed_blocks=counts.removed,
            restored_blocks=counts.restored,
            cleared=counts.cleared,
            gaps=counts.gaps,
            lost_messages=counts.lost_messages,
            resident_blocks=resident,
            state=state,
            evicted={f"{evictor}{EVICTS}{victim}": blocks for (evictor, victim), blocks in counts.evicted.items()},
            restored_of=counts.restored_of,
            lifetime=counts.lifetime,
            restore_gap=counts.restore_gap,
        )
        live = KvLive(
            at=at,
            resident_blocks=resident,
            capacity_blocks=self.activity.capacity_blocks,
            evictions_per_s=sum(self._removed) / len(self._removed) if counted else None,
            restores_per_s=sum(self._restored) / len(self._restored) if counted else None,
            cache_epoch_at=tracker.epoch_at if state == "live" else None,
            state=state,
        )
        return row, live

    def _state(self, tracker: CacheTracker, at: float, connected: bool) -> str:
        if not connected:
            return "down"
        return "silent" if self._silent(at) else tracker.state

    def _silent(self, at: float) -> bool:
        computed, base = self.activity.computed_tokens, self._computed_base
        if computed is None or base is None or at - self._heard_at <= SILENT_AFTER_S:
            return False
        return computed - base >= SILENT_TOKENS_MIN

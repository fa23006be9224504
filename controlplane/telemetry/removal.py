"""Which worker of a pool is safest to remove: the one with which the least is lost.

    value lost = recompute of the prefixes that live nowhere else + prefill that its cache spared in the last 15 min

in GPU-seconds (`leaving` says how the first is reckoned). What is down or no longer used comes first, what cannot be
told after everything that can, and the last worker that serves at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from controlplane.fleet.selectors import WorkerRow
from controlplane.telemetry.calibration import Learnt, learnt_rates
from controlplane.telemetry.leaving import Value, values_of_workers

UNUSED, COSTS, UNKNOWN, LAST = "unused", "costs", "unknown", "last"
_ORDER = (UNUSED, COSTS, UNKNOWN, LAST)
_NOTHING = Value(0, 0, 0.0, 0.0, 0)


@dataclass(frozen=True, slots=True)
class Removal:
    row: WorkerRow
    verdict: str
    """`unused` (down, or takes nothing), `costs`, `unknown`, or `last` (no other worker of its pool serves)."""
    value: Value
    recompute_s: float | None
    value_s: float | None
    """GPU-seconds lost; None = unknown."""


def ranking(pool: str, workers: Sequence[WorkerRow], *, now: datetime) -> list[Removal]:
    """Of the pool's workers, safest first. `workers`: all of them at `now`. Three queries."""
    own = [row for row in workers if row.pool == pool]
    learnt, values = learnt_rates(now=now), values_of_workers(pool, now=now)
    removals = [_removal(row, own, learnt, values) for row in own]
    return sorted(removals, key=lambda each: (_ORDER.index(each.verdict), each.value_s or 0.0, each.row.running or 0.0))


def rate_without(worker: str, workers: Sequence[WorkerRow], learnt: Mapping[str, Learnt]) -> float | None:
    """Prefill tokens/s of the workers that would take over: the middle of what was learnt of them, else the pool's."""
    others = [row for row in workers if row.worker_id != worker and serves(row)]
    rates = [learnt[row.worker_id].tokens_per_s for row in others if row.worker_id in learnt]
    if rates:
        return median(rates)
    return next((row.prefill_tokens_per_s for row in workers if row.worker_id == worker), None)


def serves(row: WorkerRow) -> bool:
    return row.state == "ready" and row.health == "ok"


def _removal(
    row: WorkerRow, own: Sequence[WorkerRow], learnt: Mapping[str, Learnt], values: Mapping[str, Value]
) -> Removal:
    value, rate = values.get(row.worker_id, _NOTHING), rate_without(row.worker_id, own, learnt)
    verdict = _verdict(row, own, heard=bool(learnt), rate=rate)
    recompute_s = value.recompute_tokens / rate if rate else None
    known = verdict in (COSTS, LAST) and recompute_s is not None
    lost_s = 0.0 if verdict == UNUSED else (recompute_s or 0.0) + value.saved_ms / 1000 if known else None
    return Removal(row, verdict, value, recompute_s, lost_s)


def _verdict(row: WorkerRow, own: Sequence[WorkerRow], *, heard: bool, rate: float | None) -> str:
    if row.health == "down" or (row.state != "ready" and not row.running):
        return UNUSED
    if serves(row) and not any(serves(other) for other in own if other.worker_id != row.worker_id):
        return LAST
    return COSTS if heard and rate and row.health == "ok" else UNKNOWN

"""What routers have learnt of each worker: its prefill rate, how far hits come true, how prompts are matched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec

from controlplane.telemetry.sources import last_words
from router.contract.telemetry import Calibration, ExactState

HEARD_WITHIN = timedelta(seconds=15)
"""A router speaks every second: what one said before is no longer what it goes by."""

_STATES = ("ejected", "maintenance", "drain", "full", "ready")
"""Worst first."""


@dataclass(frozen=True, slots=True)
class Learnt:
    """Of one worker, by the router that has seen most of it."""

    tokens_per_s: float
    samples: int
    """First bytes, of all routers; 0 = the rate is the pool's."""
    age_s: float | None
    """Since the newest of them; None = none yet."""
    credit: float
    """Share of the predicted hit tokens that it delivers, 0…1: the least that any router gives it."""
    routers: int
    """That were heard."""
    matched: str
    """`exact`, `text: <reason>`, or "text" where the pool names no tokenizer."""
    outstanding: int
    """Requests that all routers have under way there."""
    seen_as: str
    """The worst that a router takes it for: `ejected`, `full`, `drain`, `maintenance` or `ready`."""


def learnt_rates(*, now: datetime) -> dict[str, Learnt]:
    """By worker; workers that no router was heard of are left out. One query."""
    found: dict[str, Learnt] = {}
    for word in last_words(now):
        if now - word.last_at > HEARD_WITHIN:
            continue
        late_s = max((now - word.last_at).total_seconds(), 0.0)
        pools = _exact_states(word.state)
        for worker, raw in (word.state.get("calibration") or {}).items():
            told = _calibration(raw)
            if told is not None:
                seen = _learnt(told, late_s, worker, word.state, _matched(worker, pools))
                found[worker] = _together(found[worker], seen) if worker in found else seen
    return found


def _learnt(told: Calibration, late_s: float, worker: str, state: Mapping[str, Any], matched: str) -> Learnt:
    age_s = None if told.age_s is None else told.age_s + late_s
    outstanding = int((state.get("worker_outstanding") or {}).get(worker, 0))
    seen_as = str((state.get("worker_states") or {}).get(worker, "ready"))
    return Learnt(told.tokens_per_s, told.samples, age_s, told.credit, 1, matched, outstanding, seen_as)


def _together(one: Learnt, other: Learnt) -> Learnt:
    most = max(one, other, key=lambda each: each.samples)
    return Learnt(
        tokens_per_s=most.tokens_per_s,
        samples=one.samples + other.samples,
        age_s=min((each.age_s for each in (one, other) if each.age_s is not None), default=None),
        credit=min(one.credit, other.credit),
        routers=one.routers + other.routers,
        matched=one.matched if one.matched != "exact" else other.matched,
        outstanding=one.outstanding + other.outstanding,
        seen_as=min(one.seen_as, other.seen_as, key=_worse),
    )


def _worse(seen_as: str) -> int:
    return _STATES.index(seen_as) if seen_as in _STATES else len(_STATES)


def _calibration(raw: Any) -> Calibration | None:
    try:
        return msgspec.convert(raw, Calibration)
    except msgspec.ValidationError:
        return None


def _exact_states(state: Mapping[str, Any]) -> dict[str, ExactState]:
    try:
        return msgspec.convert(state.get("exact") or {}, dict[str, ExactState])
    except msgspec.ValidationError:
        return {}


def _matched(worker: str, pools: Mapping[str, ExactState]) -> str:
    pool = pools.get(worker.partition("/")[0])
    if pool is None:
        return "text"
    if pool.status != "exact":
        return f"text: {pool.status.removeprefix('approximate: ')}"
    reason = pool.by_text.get(worker)
    return "exact" if reason is None else f"text: {reason}"

"""What becomes of an alert when its measure is read again: states and their changes. Pure: no database, no clock.

    none ─breach─▶ pending ─held for_s─▶ firing ─beyond clear_at─▶ resolved
      └─unknown──▶ unknown                 │ figures missing: it goes on, and says since when
                                           └ a silence fits: silenced, until it ends

Unknown is not good: it neither ends an alert nor counts as fine. A rule may ask that it fires as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Protocol

PENDING, FIRING, SILENCED, UNKNOWN, RESOLVED, OK = "pending", "firing", "silenced", "unknown", "resolved", "ok"
LASTING = (FIRING, SILENCED)
"""States of an alert that fires, told or not."""
GRAVITY = (FIRING, SILENCED, PENDING, UNKNOWN, OK)
"""Gravest first."""


class Condition(Protocol):
    """Of a rule."""

    comparison: str
    threshold: float
    clear_at: float | None
    for_s: int
    on_unknown: str


class Matcher(Protocol):
    """Of a silence."""

    rule_slug: str
    subject: str
    tenant: str
    pool: str
    severity: str


@dataclass(frozen=True, slots=True)
class Reading:
    """A measure of one subject. `value` None = unknown, and `reason` says why."""

    subject: str
    value: float | None
    reason: str = ""
    tenant: str = ""
    pool: str = ""


@dataclass(frozen=True, slots=True)
class Standing:
    """An alert as it stands; `state` OK = there is none."""

    state: str
    since: datetime


def breaches(rule: Condition, value: float) -> bool:
    return value > rule.threshold if rule.comparison == "above" else value < rule.threshold


def is_clear(rule: Condition, value: float) -> bool:
    """Beyond the value at which it stops, which may lie further off than the one at which it starts."""
    limit = rule.threshold if rule.clear_at is None else rule.clear_at
    return value <= limit if rule.comparison == "above" else value >= limit


def next_standing(rule: Condition, before: Standing, reading: Reading, now: datetime) -> Standing:
    """RESOLVED ends one that fired; OK drops what had not fired."""
    if before.state in LASTING:
        over = reading.value is not None and is_clear(rule, reading.value)
        return Standing(RESOLVED, before.since) if over else before
    if reading.value is None and rule.on_unknown != "fire":
        return before if before.state == UNKNOWN else Standing(UNKNOWN, now)
    if reading.value is not None and not breaches(rule, reading.value):
        return Standing(OK, now)
    since = before.since if before.state == PENDING else now
    held = (now - since).total_seconds() >= rule.for_s
    return Standing(FIRING if held else PENDING, since)


def fits(silence: Matcher, *, rule_slug: str, severity: str, reading: Reading) -> bool:
    """Whether every matcher that the silence names fits."""
    pairs = (
        (silence.rule_slug, rule_slug),
        (silence.tenant, reading.tenant),
        (silence.pool, reading.pool),
        (silence.severity, severity),
    )
    exact = all(wanted in ("", given) for wanted, given in pairs)
    return exact and (not silence.subject or fnmatchcase(reading.subject, silence.subject))


def gravest(states: Iterable[str]) -> str:
    """OK for none."""
    return min(states, key=GRAVITY.index, default=OK)


def worst(rule: Condition, values: Iterable[float]) -> float | None:
    return (max if rule.comparison == "above" else min)(values, default=None)

"""Rows of the hot-spots pages: prefixes with their workers as bars, placement rules with their effect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import F

from controlplane.placements.models import PlacementRule
from controlplane.placements.selectors import placements
from controlplane.telemetry.hotspot_figures import HotSpot
from controlplane.telemetry.placement_effects import Effect, Ruled, effects
from controlplane.telemetry.windows import Scope

BAR_UNITS = 100.0
NAMED_WORKERS = 2
RULES_SHOWN = 100


@dataclass(frozen=True, slots=True)
class BarPart:
    """One worker's part of a bar of BAR_UNITS."""

    x: str
    width: str
    worker: str
    share: float
    look: int
    """Which of the alternating looks: neighbours differ."""


@dataclass(frozen=True, slots=True)
class PrefixRow:
    spot: HotSpot
    bar: list[BarPart]
    words: str
    """The busiest workers with their shares."""
    rule: PlacementRule | None


@dataclass(frozen=True, slots=True)
class RuleRow:
    rule: PlacementRule
    effect: Effect
    active: bool


def prefix_rows(spots: Sequence[HotSpot], rules: Sequence[PlacementRule], *, now: datetime) -> list[PrefixRow]:
    ruled = {(rule.namespace.namespace_id, rule.pool.slug, rule.prefix): rule for rule in rules if rule.in_force(now)}
    return [
        PrefixRow(spot, bar_of(spot), _busiest(spot), ruled.get((spot.namespace, spot.pool, spot.prefix)))
        for spot in spots
    ]


def bar_of(spot: HotSpot) -> list[BarPart]:
    parts, at = [], 0.0
    for place, worker in enumerate(worker for worker in spot.workers if worker.requests):
        width = worker.share * BAR_UNITS
        # Text, so that no locale writes a decimal comma into SVG.
        parts.append(BarPart(f"{at:.2f}", f"{width:.2f}", worker.worker, worker.share, place % 3))
        at += width
    return parts


def _busiest(spot: HotSpot) -> str:
    serving = [worker for worker in spot.workers if worker.requests]
    named = ", ".join(f"{short(worker.worker)} {worker.share * 100:.0f} %" for worker in serving[:NAMED_WORKERS])
    more = len(serving) - NAMED_WORKERS
    return f"{named}, {more} more" if more > 0 else named


def short(worker: str) -> str:
    """Without its pool, where that stands beside it."""
    return worker.rpartition("/")[2]


def shown_rules(scope: Scope, *, now: datetime) -> list[PlacementRule]:
    """Of the scope's tenant; those that have not ended first, then the newest. One query."""
    rows = placements(tenant=scope.tenant).order_by(F("ended_at").desc(nulls_first=True), "-id")
    return list(rows[:RULES_SHOWN])


def rule_rows(rules: Sequence[PlacementRule], *, now: datetime) -> list[RuleRow]:
    """One query."""
    asked = [
        Ruled(
            rule.namespace.namespace_id,
            rule.pool.slug,
            rule.prefix,
            rule.created_at,
            min(rule.ended_at or now, rule.until, now),
        )
        for rule in rules
    ]
    return [RuleRow(rule, effect, rule.in_force(now)) for rule, effect in zip(rules, effects(asked), strict=True)]

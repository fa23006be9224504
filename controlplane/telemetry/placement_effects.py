"""What placement rules did: a prefix in the hour before its rule, and in the last hour under it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Q

from controlplane.telemetry.merge import HEAT, Values, merge_into
from controlplane.telemetry.models import PrefixHeatRollup, Width

WINDOW = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Ruled:
    """A rule, as far as its effect is concerned."""

    namespace: str
    pool: str
    prefix: str
    since: datetime
    to: datetime


@dataclass(frozen=True, slots=True)
class Side:
    """A prefix before or under its rule. None = no request then."""

    requests: int = 0
    workers: int = 0
    top_share: float | None = None
    queue_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Effect:
    before: Side
    under: Side


def effects(rules: Sequence[Ruled]) -> list[Effect]:
    """In the order of the rules; from minutes, which are kept for as long as a rule may last. One query."""
    if not rules:
        return []
    wanted = Q()
    for rule in rules:
        wanted |= Q(namespace=rule.namespace, pool=rule.pool, prefix=rule.prefix, start__gte=rule.since - WINDOW)
    rows: list[Any] = list(
        PrefixHeatRollup.objects.filter(wanted, width_s=Width.MINUTE).values(
            "namespace", "pool", "prefix", "start", "requests", "by_worker", "prompt_tokens", "queue_ms"
        )
    )
    return [_effect(rule, rows) for rule in rules]


def _effect(rule: Ruled, rows: Sequence[Values]) -> Effect:
    own = [row for row in rows if (row["namespace"], row["pool"], row["prefix"]) == _key(rule)]
    minute = timedelta(minutes=1)
    return Effect(
        # A minute that the rule cuts in two belongs to neither side.
        before=_side([row for row in own if row["start"] + minute <= rule.since]),
        under=_side([row for row in own if max(rule.since, rule.to - WINDOW) <= row["start"] < rule.to]),
    )


def _key(rule: Ruled) -> tuple[str, str, str]:
    return rule.namespace, rule.pool, rule.prefix


def _side(rows: Sequence[Values]) -> Side:
    total: Values = {}
    for row in rows:
        merge_into(HEAT, total, row)
    requests, by_worker = total.get("requests", 0), total.get("by_worker", {})
    if not requests:
        return Side()
    queue_ms = total["queue_ms"] / requests if total.get("prompt_tokens") else None
    return Side(requests, len(by_worker), max(by_worker.values(), default=0) / requests, queue_ms)

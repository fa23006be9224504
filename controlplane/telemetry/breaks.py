"""Prefix breakers by namespace: what routers counted, summed by the hour, and the findings made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db.models import Max, Min, Sum

from controlplane.fleet.findings import Observation, observe
from controlplane.fleet.models import Finding
from controlplane.telemetry.models import PrefixBreakRollup
from router.contract.telemetry import BREAK_KINDS, PrefixBreaks

BREAKER_KIND = "prefix_breaker"
HOUR_S = 3600
WINDOW = timedelta(hours=2)
"""Of findings: the present hour and the one before."""
PROMPTS_MIN = 20
"""Looked at, before a share of them says something."""
SHARE_MIN = 0.2
BYTES_A_TOKEN = 4
KIND_WORDS = {
    "clock": "a date or time",
    "uuid": "a UUID",
    "request_id": "the id of a request or session",
    "hash": "a random-looking value",
    "number": "a number",
    "whitespace": "white space",
    "order": "parts in another order",
    "text": "a text",
    "other": "something",
}


@dataclass(frozen=True, slots=True)
class Breaker:
    """A namespace's most frequent early change of one kind."""

    namespace: str
    pool: str
    template: str
    kind: str
    prompts: int
    looked_at: int
    position_bytes: int
    """Where it begins: the least seen."""
    lost_tokens_mean: int
    """Of each of these prompts, about: shared text behind the change that is computed each time."""
    last_at: datetime

    @property
    def share(self) -> float:
        return self.prompts / self.looked_at if self.looked_at else 0.0

    @property
    def sentence(self) -> str:
        return (
            f"{self.share:.0%} of {self.looked_at} prompts differ from byte {self.position_bytes:,} on by "
            f"{KIND_WORDS[self.kind]}: about {self.lost_tokens_mean:,} like tokens behind it are computed each time."
        )


def add_breaks(rows: Sequence[tuple[float, PrefixBreaks]]) -> None:
    """Inside the ingest transaction: (second in Unix time, row)."""
    for at_s, row in rows:
        start = datetime.fromtimestamp(at_s // HOUR_S * HOUR_S, UTC)
        kind = row.kind if row.kind in BREAK_KINDS or not row.kind else "other"
        at = datetime.fromtimestamp(at_s, UTC)
        stored, made = PrefixBreakRollup.objects.get_or_create(
            start=start, namespace=row.namespace, pool=row.pool, template=row.template, kind=kind,
            defaults={"position_bytes": row.position_bytes, "last_at": at},
        )  # fmt: skip
        stored.prompts += row.prompts
        stored.lost_bytes += row.lost_bytes
        stored.position_bytes = row.position_bytes if made else min(stored.position_bytes, row.position_bytes)
        stored.last_at = max(stored.last_at, at)
        stored.save()


def breakers(
    *, now: datetime, window: timedelta = WINDOW, namespace: str = "", tenants: frozenset[str] | None = None
) -> list[Breaker]:
    """Of the window's hours, most lost tokens first. `tenants` None = all of them. Two queries."""
    since = now - window
    rows = PrefixBreakRollup.objects.filter(start__gt=since - timedelta(seconds=HOUR_S), last_at__gte=since)
    if namespace:
        rows = rows.filter(namespace=namespace)
    dims = ("namespace", "pool", "template")
    looked = {
        tuple(row[name] for name in dims): row["all"]
        for row in rows.filter(kind="").values(*dims).annotate(all=Sum("prompts"))
    }
    sums = rows.exclude(kind="").values(*dims, "kind")
    found = [
        Breaker(
            namespace=row["namespace"],
            pool=row["pool"],
            template=row["template"],
            kind=row["kind"],
            prompts=row["total"],
            looked_at=looked.get(tuple(row[name] for name in dims), row["total"]),
            position_bytes=row["first"],
            lost_tokens_mean=row["lost"] // max(row["total"], 1) // BYTES_A_TOKEN,
            last_at=row["newest"],
        )
        for row in sums.annotate(
            total=Sum("prompts"), lost=Sum("lost_bytes"), first=Min("position_bytes"), newest=Max("last_at")
        )
        if tenants is None or row["namespace"].partition("/")[0] in tenants
    ]
    return sorted(found, key=lambda item: -item.lost_tokens_mean * item.prompts)


def observe_breakers(*, now: datetime) -> int:
    """A finding for each namespace of whose prompts SHARE_MIN or more are cut off; closes those that are no more."""
    worst: dict[str, Breaker] = {}
    for item in breakers(now=now):
        if item.looked_at >= PROMPTS_MIN and item.share >= SHARE_MIN:
            worst.setdefault(item.namespace, item)
    observe([Observation(BREAKER_KIND, item.namespace, item.sentence) for item in worst.values()], at=now)
    gone = Finding.objects.filter(kind=BREAKER_KIND, resolved_at=None).exclude(subject__in=worst)
    gone.update(resolved_at=now)
    return len(worst)

"""Who sends telemetry and when each last spoke."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Max
from django.utils import timezone

from controlplane.fleet.models import WorkerStatus
from controlplane.fleet.selectors import WorkerRow, stale_after_s
from controlplane.telemetry.figures import RouterRow, SourceFreshness
from controlplane.telemetry.models import SourceProgress

KV_SOURCE = "kv-events"
"""Source name of the KV-event subscriber's shipments."""
SOURCE_STALE_AFTER_S = 6.0
"""Sources speak every second; ingestion adds up to two."""
ROUTERS_LISTED_FOR = timedelta(minutes=10)


Spoken = dict[str, datetime]
"""Source → time of its newest second."""


def last_spoken() -> Spoken:
    """Of every source that is remembered. One query."""
    rows = SourceProgress.objects.values("source").annotate(newest=Max("last_at")).order_by("source")
    return {row["source"]: row["newest"] for row in rows}


def freshness(
    *, now: datetime | None = None, spoken: Spoken | None = None, workers: Sequence[WorkerRow] | None = None
) -> list[SourceFreshness]:
    """Routers, KV-event subscriber and polls: when each last spoke. Two queries.

    `spoken`, `workers` (all of them): by whoever has them already.
    """
    now = now or timezone.now()
    since = now - ROUTERS_LISTED_FOR
    found = [
        _fresh(source, "kv-events" if source == KV_SOURCE else "router", newest, now)
        for source, newest in (last_spoken() if spoken is None else spoken).items()
        if newest >= since or source == KV_SOURCE
    ]
    return [*found, _fresh("polls", "polls", _polled_at(workers, now), now, stale_after_s=stale_after_s())]


def _polled_at(workers: Sequence[WorkerRow] | None, now: datetime) -> datetime | None:
    if workers is None:
        newest: datetime | None = WorkerStatus.objects.aggregate(newest=Max("ok_at"))["newest"]
        return newest
    ages_s = [row.poll_age_s for row in workers if row.poll_age_s is not None]
    return now - timedelta(seconds=min(ages_s)) if ages_s else None


def _fresh(
    source: str, kind: str, at: datetime | None, now: datetime, *, stale_after_s: float = SOURCE_STALE_AFTER_S
) -> SourceFreshness:
    age_s = None if at is None else max(0.0, (now - at).total_seconds())
    stale = age_s is None or age_s > stale_after_s
    return SourceFreshness(
        source=source, kind=kind, last_at=at, age_s=age_s, stale=stale, detail="" if at else "nothing arrived yet"
    )


def routers(*, now: datetime | None = None) -> list[RouterRow]:
    """Routers heard of within the last ten minutes, each by its newest boot."""
    now = now or timezone.now()
    rows = SourceProgress.objects.filter(last_at__gte=now - ROUTERS_LISTED_FOR).filter(router_state__isnull=False)
    newest = {row.source: row for row in rows.order_by("applied_at", "last_at")}
    return [_router_row(row, now) for _, row in sorted(newest.items())]


@dataclass(frozen=True, slots=True)
class RouterWord:
    """A router's last word about itself, and the last one of its boot before."""

    router: str
    last_at: datetime
    state: dict[str, Any]
    """`RouterState` as JSON."""
    state_before: dict[str, Any] | None


def last_words(now: datetime) -> list[RouterWord]:
    """Of the routers heard of within the last ten minutes. One query."""
    rows = SourceProgress.objects.filter(last_at__gte=now - ROUTERS_LISTED_FOR, router_state__isnull=False)
    boots: dict[str, list[SourceProgress]] = {}
    for row in rows.order_by("source", "applied_at", "last_at"):
        boots.setdefault(row.source, []).append(row)
    return [
        RouterWord(source, own[-1].last_at, own[-1].router_state or {}, own[-2].router_state if own[1:] else None)
        for source, own in boots.items()
    ]


def _router_row(row: SourceProgress, now: datetime) -> RouterRow:
    state = row.router_state or {}
    return RouterRow(
        router=row.source,
        last_at=row.last_at,
        age_s=max(0.0, (now - row.last_at).total_seconds()),
        snapshot_version=state["snapshot_version"],
        snapshot_age_s=state["snapshot_age_s"],
        inflight=state["inflight"],
        index_blocks=state["index_blocks"],
        index_bytes=state["index_bytes"],
        stream_dropped=state.get("stream_dropped", 0),
        worker_states=state.get("worker_states", {}),
        worker_outstanding=state.get("worker_outstanding", {}),
    )


def router_data_age_s(now: datetime, *, spoken: Spoken | None = None) -> float | None:
    """Seconds since the newest second that any router reported; None = none ever did."""
    times = [at for source, at in (last_spoken() if spoken is None else spoken).items() if source != KV_SOURCE]
    return max(0.0, (now - max(times)).total_seconds()) if times else None

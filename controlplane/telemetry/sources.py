"""Who sends telemetry and when each last spoke."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import Max
from django.utils import timezone

from controlplane.fleet.models import WorkerStatus
from controlplane.fleet.selectors import stale_after_s
from controlplane.telemetry.figures import RouterRow, SourceFreshness
from controlplane.telemetry.models import SourceProgress

KV_SOURCE = "kv-events"
"""Source name of the KV-event subscriber's shipments."""
SOURCE_STALE_AFTER_S = 6.0
"""Sources speak every second; ingestion adds up to two."""
ROUTERS_LISTED_FOR = timedelta(minutes=10)


def freshness(*, now: datetime | None = None) -> list[SourceFreshness]:
    """Routers, KV-event subscriber and polls: when each last spoke. Two queries."""
    now = now or timezone.now()
    since = now - ROUTERS_LISTED_FOR
    spoken = SourceProgress.objects.values("source").annotate(newest=Max("last_at")).order_by("source")
    found = [
        _fresh(row["source"], "kv-events" if row["source"] == KV_SOURCE else "router", row["newest"], now)
        for row in spoken
        if row["newest"] >= since or row["source"] == KV_SOURCE
    ]
    polled = WorkerStatus.objects.aggregate(newest=Max("ok_at"))["newest"]
    return [*found, _fresh("polls", "polls", polled, now, stale_after_s=stale_after_s())]


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


def router_data_age_s(now: datetime) -> float | None:
    """Seconds since the newest second that any router reported; None = none ever did."""
    newest = SourceProgress.objects.exclude(source=KV_SOURCE).aggregate(newest=Max("last_at"))["newest"]
    return None if newest is None else max(0.0, (now - newest).total_seconds())

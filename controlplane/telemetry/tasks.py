"""The ingest tick and the retention of rollups and decisions."""

from __future__ import annotations

import logging
import time
from datetime import datetime, timedelta

import redis
from celery import shared_task
from django.db import DatabaseError, DataError, IntegrityError
from django.utils import timezone

from controlplane.fleet.valkey import announce, connection, single_flight
from controlplane.telemetry import exactness
from controlplane.telemetry.breaks import observe_breakers
from controlplane.telemetry.hit_check import check_hit_counters
from controlplane.telemetry.ingest import Applied, apply_entries
from controlplane.telemetry.models import (
    DecisionRecord,
    EvictionRollup,
    PrefixBreakRollup,
    PrefixHeatRollup,
    RequestRollup,
    RequestTotal,
    SliceRollup,
    SourceProgress,
    TenantTotal,
    WorkerRollup,
    WorkerTotal,
)
from controlplane.telemetry.recorded import expire_recorded
from controlplane.telemetry.stream import Entry, acknowledge, note_lags, read_batch
from controlplane.telemetry.tenant_totals import TENANT_RETENTION_S
from controlplane.telemetry.windows import RETENTION_S, SLICE_RETENTION_S

log = logging.getLogger(__name__)

TICK_S_MAX = 4.0
"""A tick that finds a backlog goes on for this long, then leaves the rest to the next."""
LOCK_S = 30.0
"""Far above TICK_S_MAX: the lock of a killed ingester ends by itself."""
DECISIONS_KEPT_MAX = 50_000
DECISIONS_KEPT_FOR = timedelta(days=3)
BREAKS_KEPT_FOR = timedelta(days=7)
PROGRESS_KEPT_FOR = timedelta(days=3)
"""The stream holds about an hour: nothing older can be delivered again."""
DELETED_ROWS_MAX = 20_000
"""Of one statement: SQLite's other writers wait as long as one takes."""


@shared_task
def ingest() -> int:
    """Applies what waits in the stream. How many shipments."""
    with single_flight("ingest", expires_s=LOCK_S, without_valkey=False) as mine:
        return _ingest_for(TICK_S_MAX) if mine else 0


def _ingest_for(seconds: float) -> int:
    ends_at = time.monotonic() + seconds
    count = 0
    try:
        while time.monotonic() < ends_at:
            entries = read_batch(connection())
            if not entries:
                break
            count += _ingest_batch(entries)
    except (redis.RedisError, OSError):
        log.warning("ingest stopped early: Valkey does not answer")
    if count:
        announce("telemetry")
    return count


def _ingest_batch(entries: list[Entry]) -> int:
    now = timezone.now()
    applied = _apply(entries, now)
    acknowledge(connection(), entries)
    note_lags(connection(), applied.lags_ms)
    if applied.refused:
        log.warning("%d shipments refused: %s", len(applied.refused), applied.refused[-1])
    return applied.applied


def _apply(entries: list[Entry], now: datetime) -> Applied:
    """The batch at once; one by one when the database refuses its content, so that one bad entry costs only itself."""
    try:
        return apply_entries([data for _, data in entries], now=now)
    except (IntegrityError, DataError):
        log.exception("a batch of %d shipments does not fit the tables; applying them one by one", len(entries))
    total = Applied()
    for _, data in entries:
        try:
            one = apply_entries([data], now=now)
        except (IntegrityError, DataError):
            one = Applied(refused=["the database refuses its content"])
        total.applied += one.applied
        total.refused += one.refused
        total.lags_ms += one.lags_ms
    return total


@shared_task
def check_hits() -> int:
    """Holds workers' hit counters against their answers. How many are in doubt."""
    return check_hit_counters(now=timezone.now())


@shared_task
def note_breakers() -> int:
    """Opens and closes the findings of namespaces with a prefix breaker. How many have one."""
    return observe_breakers(now=timezone.now())


@shared_task
def watch_exact_pools() -> None:
    """Opens and closes the findings of pools that name a tokenizer."""
    exactness.watch_exact_pools(timezone.now())


@shared_task
def expire_rollups() -> int:
    """Deletes rows past their retention, a bounded number at a time. How many."""
    now = timezone.now()
    deleted = 0
    for model in (RequestRollup, RequestTotal, WorkerRollup, WorkerTotal, PrefixHeatRollup, EvictionRollup):
        for width_s, kept_s in RETENTION_S.items():
            deleted += _delete(model, width_s=width_s, start__lt=now - timedelta(seconds=kept_s))
    for width_s, kept_s in SLICE_RETENTION_S.items():
        deleted += _delete(SliceRollup, width_s=width_s, start__lt=now - timedelta(seconds=kept_s))
    for width_s, kept_s in TENANT_RETENTION_S.items():
        deleted += _delete(TenantTotal, width_s=width_s, start__lt=now - timedelta(seconds=kept_s))
    deleted += _delete(DecisionRecord, at__lt=now - DECISIONS_KEPT_FOR)
    deleted += _delete_surplus_decisions()
    deleted += _delete(PrefixBreakRollup, start__lt=now - BREAKS_KEPT_FOR)
    deleted += expire_recorded(now=now)
    deleted += _delete(SourceProgress, applied_at__lt=now - PROGRESS_KEPT_FOR)
    return deleted


def _delete_surplus_decisions() -> int:
    newest_surplus = DecisionRecord.objects.order_by("-at", "-pk")[DECISIONS_KEPT_MAX : DECISIONS_KEPT_MAX + 1].first()
    return _delete(DecisionRecord, at__lte=newest_surplus.at) if newest_surplus is not None else 0


def _delete(model: type, **conditions: object) -> int:
    doomed = list(model.objects.filter(**conditions).values_list("pk", flat=True)[:DELETED_ROWS_MAX])  # type: ignore[attr-defined]
    try:
        for start in range(0, len(doomed), 500):
            model.objects.filter(pk__in=doomed[start : start + 500]).delete()  # type: ignore[attr-defined]
    except DatabaseError:
        log.exception("retention of %s was cut short", model.__name__)
    return len(doomed)

"""Beat's poll tick and the polls of a shard. At most one poll of a shard runs at a time; missed ticks are dropped."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from datetime import UTC, datetime

from celery import shared_task
from django.conf import settings
from django.utils import timezone

from controlplane.fleet.findings import resolve_past_events
from controlplane.fleet.live_state import forget_others, publish_live_state
from controlplane.fleet.models import Worker
from controlplane.fleet.poll import poll_workers
from controlplane.fleet.poll_store import load_targets, store
from controlplane.fleet.valkey import announce, single_flight

log = logging.getLogger(__name__)

SHARD_WORKERS_MAX = 50
DEADLINE_SHARE = 0.9
"""Of the interval: a poll ends before the next begins."""
ANNOUNCED_APART_S = 1.0
"""Shards of one tick are told of together: a page that draws itself anew reads them all."""
NEVER = datetime.min.replace(tzinfo=UTC)
LOCK_INTERVALS = 2
"""A shard whose task was killed is polled again two intervals later at the latest (A21)."""


@shared_task
def poll_all() -> int:
    """Starts a task for each shard of workers, in whatever state: workers in maintenance are watched too."""
    fields = ("pk", "pool__slug", "slug", "status__polled_at", "status__consecutive_failures")
    workers = list(Worker.objects.order_by("pk").values_list(*fields))
    forget_others({f"{pool}/{slug}" for _, pool, slug, _, _ in workers})
    resolve_past_events(at=timezone.now())
    shards = _shards([(pk, polled_at, bool(failures)) for pk, _, _, polled_at, failures in workers])
    for shard in shards:
        poll_shard.apply_async(args=[shard], expires=settings.CONFIG.poll_interval_s * 1.5)
    return len(shards)


def _shards(workers: Sequence[tuple[int, datetime | None, bool]]) -> list[list[int]]:
    """`workers`: (primary key, last polled, whether that failed), by primary key.

    Silent workers are polled apart: a shard takes as long as its slowest worker. The shard that has waited longest
    comes first, so that where there is not enough time for all of them, each gets its turn.
    """
    waited: list[tuple[datetime, list[int]]] = []
    for silent in (False, True):
        own = [(pk, polled_at or NEVER) for pk, polled_at, failed in workers if failed is silent]
        for start in range(0, len(own), SHARD_WORKERS_MAX):
            part = own[start : start + SHARD_WORKERS_MAX]
            waited.append((min(polled_at for _, polled_at in part), [pk for pk, _ in part]))
    return [pks for _, pks in sorted(waited)]


@shared_task
def poll_shard(worker_pks: list[int]) -> int:
    """Polls these workers (primary keys) and stores what they said. How many answered."""
    interval_s = settings.CONFIG.poll_interval_s
    name = "poll:" + hashlib.sha256(repr(worker_pks).encode()).hexdigest()[:16]
    with single_flight(name, expires_s=interval_s * LOCK_INTERVALS, without_valkey=True) as mine:
        if not mine:
            log.info("shard of %d workers is still being polled", len(worker_pks))
            return 0
        return _poll(worker_pks, deadline_s=interval_s * DEADLINE_SHARE)


def _poll(worker_pks: list[int], *, deadline_s: float) -> int:
    targets = load_targets(worker_pks)
    outcomes = asyncio.run(poll_workers(targets, networks=settings.CONFIG.worker_networks, deadline_s=deadline_s))
    # Routers first: the live state must not wait for a busy database.
    publish_live_state(outcomes)
    store(outcomes, at=timezone.now())
    announce("fleet", apart_s=ANNOUNCED_APART_S)
    return sum(outcome.ok for outcome in outcomes)

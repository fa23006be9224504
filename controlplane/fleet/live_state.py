"""The workers' live state in Valkey, a hint for the routers' choice. Losing it costs nothing but freshness."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Any

import redis

from controlplane.fleet.poll import PollOutcome
from controlplane.fleet.valkey import connection
from router.contract.channels import KV_LIVE_HASH, WORKER_LIVE_HASH
from router.contract.live import WorkerLive, encode

log = logging.getLogger(__name__)


def publish_live_state(outcomes: Sequence[PollOutcome]) -> bool:
    """One round trip for a shard. False when Valkey did not take it."""
    # redis' stubs take the key and value types invariantly.
    fields: dict[Any, Any] = {outcome.target.worker_id: encode(live_of(outcome)) for outcome in outcomes}
    try:
        if fields:
            connection().hset(WORKER_LIVE_HASH, mapping=fields)
    except (redis.RedisError, OSError):
        log.warning("live state not published: Valkey does not answer")
        return False
    return True


def live_of(outcome: PollOutcome) -> WorkerLive:
    reading = outcome.reading
    if reading is None:
        return WorkerLive(at=outcome.at, ok=False)
    return WorkerLive(
        at=outcome.at,
        running=None if reading.running is None else round(reading.running),
        waiting=None if reading.waiting is None else round(reading.waiting),
        kv_use=reading.kv_use,
        started_at=reading.started_at,
    )


def forget_others(worker_ids: Collection[str]) -> None:
    """Drop live state of workers that no longer exist."""
    try:
        client = connection()
        for name in (WORKER_LIVE_HASH, KV_LIVE_HASH):
            gone = [key for key in client.hkeys(name) if key.decode() not in worker_ids]  # type: ignore[union-attr]
            if gone:
                client.hdel(name, *gone)
    except (redis.RedisError, OSError):
        log.info("live state not tidied: Valkey does not answer")

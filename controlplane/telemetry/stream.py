"""The telemetry stream as the ingester reads it: own pending entries, then new ones, acknowledged after commit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import redis

from router.contract.channels import TELEMETRY_GROUP, TELEMETRY_STREAM
from router.contract.histogram import Buckets, bucket_of

CONSUMER = "ingester"
"""One name for whichever process holds the lock: what a killed one left pending is the next one's."""
BATCH_ENTRIES_MAX = 200
LAG_KEY = "tidemark:ingest:lag_ms"
"""Hash: histogram bucket (router.contract.histogram) → applied shipments since the key was made."""

Entry = tuple[bytes, bytes]
"""(entry id, shipment bytes)."""


def read_batch(client: redis.Redis) -> list[Entry]:
    """Up to BATCH_ENTRIES_MAX entries. Raises redis.RedisError."""
    try:
        return _read(client, "0") or _read(client, ">")
    except redis.ResponseError as error:
        if "NOGROUP" not in str(error):
            raise
        # From the beginning: shipments sent before the first ingester count too.
        client.xgroup_create(TELEMETRY_STREAM, TELEMETRY_GROUP, id="0", mkstream=True)
        return _read(client, ">")


def _read(client: redis.Redis, position: str) -> list[Entry]:
    answer: Any = client.xreadgroup(TELEMETRY_GROUP, CONSUMER, {TELEMETRY_STREAM: position}, count=BATCH_ENTRIES_MAX)
    if not answer:
        return []
    # RESP3 answers with a map, RESP2 with a list of pairs.
    entries = next(iter(answer.values()))[0] if isinstance(answer, dict) else answer[0][1]
    # A pending entry that was trimmed from the stream comes without fields: it is acknowledged like a refused one.
    return [(entry_id, (fields or {}).get(b"m", b"")) for entry_id, fields in entries]


def acknowledge(client: redis.Redis, entries: Sequence[Entry]) -> None:
    client.xack(TELEMETRY_STREAM, TELEMETRY_GROUP, *(entry_id for entry_id, _ in entries))


def note_lags(client: redis.Redis, lags_ms: Iterable[float]) -> None:
    pipeline = client.pipeline(transaction=False)
    for lag_ms in lags_ms:
        pipeline.hincrby(LAG_KEY, str(bucket_of(lag_ms)), 1)
    pipeline.execute()


def lag_buckets(client: redis.Redis) -> Buckets:
    """Histogram of ingest lags in milliseconds since LAG_KEY was made. Two readings subtract."""
    stored: Any = client.hgetall(LAG_KEY)
    return {int(index): int(count) for index, count in stored.items()}

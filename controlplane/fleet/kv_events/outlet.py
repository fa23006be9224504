"""Where the subscriber's seconds go: telemetry stream and live hash, with a bounded backlog while Valkey is away."""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Sequence
from typing import Any

import redis.asyncio
from redis.exceptions import RedisError

from router.contract.channels import KV_LIVE_HASH, TELEMETRY_STREAM, TELEMETRY_STREAM_MAXLEN
from router.contract.live import KvLive, encode
from router.contract.telemetry import KvRow, Shipment, encode_shipment

log = logging.getLogger(__name__)

SOURCE = "kv-events"
BACKLOG_SECONDS_MAX = 600
"""Ten minutes of shipments; older ones are dropped and their seconds stay unknown."""
TIMEOUT_S = 2.0


class Outlet:
    def __init__(self, url: str) -> None:
        self._client = redis.asyncio.Redis.from_url(url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S)
        self._boot = secrets.token_hex(8)
        self._seq = 0
        self._backlog: deque[bytes] = deque(maxlen=BACKLOG_SECONDS_MAX)
        self.dropped = 0
        """Shipments that fell out of a full backlog, since the start."""

    async def deliver(self, rows: Sequence[KvRow], live: dict[str, KvLive], *, at: float) -> bool:
        """One second of all workers. False when Valkey did not take everything; the rest is kept."""
        if len(self._backlog) == BACKLOG_SECONDS_MAX:
            self.dropped += 1
        self._backlog.append(encode_shipment(Shipment(SOURCE, self._boot, self._seq, at, kv=list(rows))))
        self._seq += 1
        try:
            await self._publish_live(live)
            await self._flush()
        except (RedisError, OSError):
            log.info("%d seconds of KV telemetry wait for Valkey", len(self._backlog))
            return False
        return True

    async def _publish_live(self, live: dict[str, KvLive]) -> None:
        fields: dict[Any, Any] = {worker: encode(word) for worker, word in live.items()}
        if fields:
            await self._client.hset(KV_LIVE_HASH, mapping=fields)

    async def _flush(self) -> None:
        while self._backlog:
            # Sent before it is forgotten: a lost answer leads to a second delivery, which the ingester ignores.
            await self._client.xadd(
                TELEMETRY_STREAM, {"m": self._backlog[0]}, maxlen=TELEMETRY_STREAM_MAXLEN, approximate=True
            )
            self._backlog.popleft()

    async def close(self) -> None:
        await self._client.aclose()

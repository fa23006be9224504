"""The router's use of Valkey/Redis: every call is bounded in time and fails softly, with one log line a change.

An outage costs freshness, never a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar

import redis.asyncio as redis
import structlog
from redis.exceptions import RedisError

log = structlog.get_logger("router.valkey")

CALL_TIMEOUT_S = 2.0
RECONNECT_S = 1.0

_T = TypeVar("_T")


class Valkey:
    def __init__(self, url: str) -> None:
        self._client: Any = redis.Redis.from_url(  # Any: redis-py's return types mix sync and async
            url, socket_timeout=CALL_TIMEOUT_S, socket_connect_timeout=CALL_TIMEOUT_S, retry=None
        )
        # A listener waits for minutes on purpose, so its connections have no read timeout.
        self._listener: Any = redis.Redis.from_url(
            url, socket_timeout=None, socket_connect_timeout=CALL_TIMEOUT_S, health_check_interval=0, retry=None
        )
        self.up: bool | None = None
        """None until the first call."""

    async def get(self, key: str) -> bytes | None:
        return await self._call(self._client.get(key), None)

    async def hash_items(self, key: str) -> dict[bytes, bytes] | None:
        """None when Valkey is away, which differs from an empty hash."""
        return await self._call(self._client.hgetall(key), None)

    async def put_in_hash(self, key: str, field: str, value: bytes) -> bool:
        return await self._call(self._client.hset(key, field, value), None) is not None

    async def exchange_in_hash(self, key: str, field: str, value: bytes) -> dict[bytes, bytes] | None:
        """Put one field and read them all, in one round trip. None when Valkey is away."""
        pipeline = self._client.pipeline(transaction=False)
        pipeline.hset(key, field, value)
        pipeline.hgetall(key)
        results = await self._call(pipeline.execute(), None)
        return None if results is None else results[1]

    async def remove_from_hash(self, key: str, field: str) -> None:
        await self._call(self._client.hdel(key, field), None)

    async def add_to_stream(self, key: str, values: list[bytes], *, maxlen: int) -> bool:
        pipeline = self._client.pipeline(transaction=False)
        for value in values:
            pipeline.xadd(key, {"m": value}, maxlen=maxlen, approximate=True)
        return await self._call(pipeline.execute(), None) is not None

    async def listen(self, channel: str) -> AsyncIterator[bytes]:
        """Messages forever; yields b"" after each (re)connect, since something may have been missed."""
        while True:
            try:
                async with self._listener.pubsub() as pubsub:
                    await pubsub.subscribe(channel)
                    yield b""
                    async for message in pubsub.listen():
                        if message["type"] == "message":
                            yield message["data"]
            except (RedisError, OSError):
                self._note(up=False)
            await asyncio.sleep(RECONNECT_S)

    async def close(self) -> None:
        await self._client.aclose()
        await self._listener.aclose()

    async def _call(self, call: Awaitable[_T], absent: _T) -> _T:
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                result = await call
        except (RedisError, OSError, TimeoutError):
            self._note(up=False)
            return absent
        self._note(up=True)
        return result

    def _note(self, *, up: bool) -> None:
        if self.up is not up:
            self.up = up
            log.info("valkey_is_up") if up else log.warning("valkey_is_down")

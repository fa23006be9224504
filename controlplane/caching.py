"""The cache that the processes share: counters of rate limits. Without Valkey each process counts for itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from django.core.cache.backends.base import DEFAULT_TIMEOUT, BaseCache
from django.core.cache.backends.locmem import LocMemCache
from django.core.cache.backends.redis import RedisCache
from redis.exceptions import RedisError

TIMEOUT_S = 0.3
"""A counter is not worth more waiting."""
LOCAL_FOR_S = 5.0
"""After a failure Valkey is left alone for so long, so that not each request waits for it."""
SOCKET = {"socket_timeout": TIMEOUT_S, "socket_connect_timeout": TIMEOUT_S}


class _Link:
    """To one Valkey: its connections and, while it is away, until when it is left alone."""

    def __init__(self, server: str, prefix: str) -> None:
        self.shared = RedisCache(server, {"KEY_PREFIX": prefix, "OPTIONS": SOCKET})
        self.local_until_s = 0.0


@lru_cache(maxsize=8)
def _link(server: str, prefix: str) -> _Link:
    """One for the process: under ASGI Django makes a cache object for each request."""
    return _Link(server, prefix)


class SharedCache(BaseCache):
    """Valkey's; while it does not answer, this process's memory. Nothing in it is worth an error."""

    def __init__(self, server: str, params: dict[str, Any]) -> None:
        super().__init__(params)
        self._link = _link(server, self.key_prefix)
        self._local = LocMemCache(f"{server} {self.key_prefix}", {"KEY_PREFIX": self.key_prefix})

    def add(self, key: str, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        return bool(self._do(lambda cache: cache.add(key, value, timeout, version)))

    def get(self, key: str, default: Any = None, version: int | None = None) -> Any:
        return self._do(lambda cache: cache.get(key, default, version))

    def set(self, key: str, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> None:
        self._do(lambda cache: cache.set(key, value, timeout, version))

    def touch(self, key: str, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        return bool(self._do(lambda cache: cache.touch(key, timeout, version)))

    def delete(self, key: str, version: int | None = None) -> bool:
        return bool(self._do(lambda cache: cache.delete(key, version)))

    def incr(self, key: str, delta: int = 1, version: int | None = None) -> int:
        """Atomic. Raises ValueError without such a key."""
        return int(self._do(lambda cache: cache.incr(key, delta, version)))

    def clear(self) -> None:
        self._do(lambda cache: cache.clear())

    def _do(self, call: Callable[[BaseCache], Any]) -> Any:
        if time.monotonic() >= self._link.local_until_s:
            try:
                return call(self._link.shared)
            except (RedisError, OSError):
                self._link.local_until_s = time.monotonic() + LOCAL_FOR_S
        return call(self._local)

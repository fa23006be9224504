"""The control plane's connection to Valkey for live state, locks and announcements: short time-outs, one a process."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import redis
from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.conf import settings
from django.utils import timezone

from router.contract.channels import DASHBOARD_GROUP

log = logging.getLogger(__name__)

TIMEOUT_S = 1.0
"""A poll must end within its period also when Valkey hangs."""
_RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"


def connection() -> redis.Redis:
    """The shared client of `settings.REDIS_URL`; nothing is sent yet."""
    return _connection(settings.REDIS_URL)


@lru_cache(maxsize=4)
def _connection(url: str) -> redis.Redis:
    return redis.Redis.from_url(
        url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, health_check_interval=30
    )


@contextmanager
def single_flight(name: str, *, expires_s: float, without_valkey: bool) -> Iterator[bool]:
    """Whether this caller holds the lock `name`, which ends with the block or after `expires_s`.

    When Valkey does not answer, the value of `without_valkey`: work that is safe to do twice proceeds.
    """
    token = secrets.token_hex(8)
    key = f"tidemark:lock:{name}"
    try:
        held = bool(connection().set(key, token, nx=True, px=int(expires_s * 1000)))
    except (redis.RedisError, OSError):
        yield without_valkey
        return
    try:
        yield held
    finally:
        if held:
            _release(key, token)


def _release(key: str, token: str) -> None:
    try:
        connection().eval(_RELEASE, 1, key, token)
    except (redis.RedisError, OSError):
        log.info("lock left to expire: %s", key)


def announce(what: str, *, apart_s: float = 0.0) -> None:
    """Tell open dashboards that fresh `what` (`fleet`, `telemetry`) is in the store, at most every `apart_s`.

    A hint: failures are only logged. Not for code inside an event loop.
    """
    message = {"type": "data.fresh", "what": what, "at": timezone.now().timestamp()}
    try:
        if apart_s and not connection().set(f"tidemark:told:{what}", 1, nx=True, px=int(apart_s * 1000)):
            return
        async_to_sync(_send)(message)
    except (redis.RedisError, OSError):
        log.info("announcement lost: Valkey does not answer")


async def _send(message: dict[str, object]) -> None:
    layer = get_channel_layer()
    if layer is not None:
        async with asyncio.timeout(TIMEOUT_S):
            await layer.group_send(DASHBOARD_GROUP, message)

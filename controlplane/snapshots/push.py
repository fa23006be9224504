"""The push of a snapshot through Valkey: a hint that makes routers fast; their poll is what makes them right."""

from __future__ import annotations

import logging

import redis
from django.conf import settings

from controlplane.snapshots.models import PublishedSnapshot
from router.contract.channels import SNAPSHOT_CHANNEL, SNAPSHOT_KEY

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 0.5
"""A push delays the operator's answer; beyond this the routers' poll is quicker anyway."""
ROUNDS_MAX = 5

_is_away = False
"""Whether the last push failed, so that an outage is logged once."""


def push_newest() -> bool:
    """Set SNAPSHOT_KEY to the newest stored snapshot and announce it. False when Valkey is away.

    Two publishers may overtake one another between commit and push: the newest is looked up again after each SET,
    so whoever comes last leaves the newest behind.
    """
    global _is_away
    try:
        with redis.Redis.from_url(
            settings.REDIS_URL, socket_connect_timeout=CONNECT_TIMEOUT_S, socket_timeout=CONNECT_TIMEOUT_S
        ) as client:
            _push_until_newest(client)
    except redis.RedisError as error:
        if not _is_away:
            log.warning("Valkey is away (%s): routers learn of snapshots by polling", type(error).__name__)
        _is_away = True
        return False
    _is_away = False
    return True


def _push_until_newest(client: redis.Redis) -> None:
    pushed = 0
    for _ in range(ROUNDS_MAX):
        newest = PublishedSnapshot.objects.first()
        if newest is None or newest.version == pushed:
            return
        with client.pipeline(transaction=True) as pipe:
            pipe.set(SNAPSHOT_KEY, newest.document)
            pipe.publish(SNAPSHOT_CHANNEL, str(newest.version))
            pipe.execute()
        pushed = newest.version

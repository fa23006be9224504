"""Routers' signs of life: those that came with polls (kept in RouterStatus) and those they left in Valkey."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import cast

import msgspec
import redis
from django.conf import settings

from controlplane.errors import Invalid
from controlplane.revocations.services import note_epoch_reached
from controlplane.snapshots.models import PublishedSnapshot, RouterStatus
from router.contract.channels import ROUTERS_HASH
from router.contract.hello import RouterHello, decode_hello

log = logging.getLogger(__name__)

WRITE_EVERY_S = 2.0
"""A poll comes every second from each router; SQLite has one writer. Freshness is told in steps of 10 s."""
ROUTERS_READ_MAX = 1000
VALKEY_TIMEOUT_S = 0.3
ROUTER_ID_MAX = 128
BOOT_MAX = 64
DIGEST_MAX = 64
"""Characters, as in RouterStatus."""
VERSION_MAX = 2**62
"""Versions beyond it are refused: they would not fit the database."""


def parse_hello(body: bytes) -> RouterHello:
    """The hello of a poll's body. Raises Invalid."""
    try:
        hello = decode_hello(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"The body is not a router's hello: {error}") from None
    if (
        not 0 < len(hello.router) <= ROUTER_ID_MAX
        or not 0 < len(hello.boot) <= BOOT_MAX
        or "\x00" in hello.router + hello.boot
    ):
        raise Invalid(f"router has 1–{ROUTER_ID_MAX} characters and boot 1–{BOOT_MAX}.")
    if not (0 <= hello.snapshot_version <= VERSION_MAX and 0 <= hello.epoch <= VERSION_MAX):
        raise Invalid("snapshot_version and epoch are counts.")
    if len(hello.digest) > DIGEST_MAX or not hello.digest.isascii() or "\x00" in hello.digest:
        raise Invalid(f"digest has at most {DIGEST_MAX} characters.")
    return hello


def note_hello(hello: RouterHello, now: datetime) -> None:
    """Keep the sign of life: at most one write each WRITE_EVERY_S, unless what it says changed. Two queries, and three
    more where it acknowledges something."""
    row = RouterStatus.objects.filter(router_id=hello.router).first()
    said = (hello.boot, hello.snapshot_version, hello.epoch, _error(hello))
    if row is None:
        row = RouterStatus(router_id=hello.router)
    elif (row.boot, row.snapshot_version, row.epoch, row.last_error) == said and (now - row.seen_at) < timedelta(
        seconds=WRITE_EVERY_S
    ):
        return
    elif (row.snapshot_version, row.epoch) != (hello.snapshot_version, hello.epoch):
        note_acks(hello.router, version=hello.snapshot_version, epoch=hello.epoch, at=now)
    if row.version_at is None or row.snapshot_version != hello.snapshot_version:
        row.version_at = now
    _fill(row, hello, now)
    # One statement, also when two polls of a router that is not known yet race: the later word stays.
    RouterStatus.objects.bulk_create(
        [row],
        update_conflicts=True,
        unique_fields=["router_id"],
        update_fields=[
            "boot", "snapshot_version", "epoch", "inflight", "admin_url", "last_error", "started_at", "seen_at",
            "version_at", "digest",
        ],
    )  # fmt: skip


def note_acks(router: str, *, version: int, epoch: int, at: datetime) -> None:
    """Its epoch counts from a snapshot of this database only: epochs of one that was lost mean other revocations."""
    if PublishedSnapshot.objects.filter(version=version).exists():
        note_epoch_reached(router, epoch, at=at)


def _fill(row: RouterStatus, hello: RouterHello, now: datetime) -> None:
    row.boot = hello.boot
    row.snapshot_version = hello.snapshot_version
    row.epoch = hello.epoch
    row.inflight = min(max(hello.inflight, 0), 2**31 - 1)
    row.admin_url = hello.admin_url.replace("\x00", "")[:300]
    row.last_error = _error(hello)
    row.digest = hello.digest
    row.started_at = datetime.fromtimestamp(hello.started_at, UTC) if 0 < hello.started_at < 2**32 else None
    row.seen_at = now


def _error(hello: RouterHello) -> str:
    return hello.last_error.replace("\x00", "")[:500]


def hellos_in_valkey() -> list[RouterHello]:
    """What routers left in ROUTERS_HASH; empty when Valkey is away. Unreadable entries are left out."""
    try:
        with redis.Redis.from_url(
            settings.REDIS_URL, socket_connect_timeout=VALKEY_TIMEOUT_S, socket_timeout=VALKEY_TIMEOUT_S
        ) as client:
            entries = cast("dict[bytes, bytes]", client.hgetall(ROUTERS_HASH))
    except redis.RedisError:
        return []
    hellos = []
    for data in list(entries.values())[:ROUTERS_READ_MAX]:
        try:
            hellos.append(decode_hello(data))
        except msgspec.DecodeError:
            log.warning("an entry of %s is not a router's hello", ROUTERS_HASH)
    return hellos


def forget_routers(*, unseen_since: datetime) -> int:
    """Delete the statuses, and the entries in Valkey, of routers not seen since. Returns how many statuses."""
    deleted, _ = RouterStatus.objects.filter(seen_at__lt=unseen_since).delete()
    gone = [hello.router for hello in hellos_in_valkey() if hello.at < unseen_since.timestamp()]
    if gone:
        try:
            with redis.Redis.from_url(settings.REDIS_URL, socket_timeout=VALKEY_TIMEOUT_S) as client:
                client.hdel(ROUTERS_HASH, *gone)
        except redis.RedisError:
            log.info("forgotten routers stay in Valkey until the next tick")
    return deleted

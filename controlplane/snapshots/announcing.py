"""Revocations sent straight to the routers' admin ports, while the snapshot that holds them is still being made.

It is a matter of speed alone: what does not arrive comes with the push, or with the next poll. Only addresses that
routers gave with an authenticated poll are called; bodies and answers are signed with the fleet key.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

import httpx
from django.conf import settings
from django.db import DatabaseError
from django.utils import timezone

from controlplane.revocations.models import Revocation
from controlplane.revocations.services import await_acks, note_direct_ack
from controlplane.snapshots.models import RouterStatus
from router.contract.revocation import (
    REVOCATIONS_PATH,
    RevocationAck,
    RevocationError,
    encode_revocations,
    open_ack,
    sign_revocation,
)

log = logging.getLogger(__name__)

REVOCATIONS_AT_ONCE = 256
"""Of one message; the routers' limit of bytes holds somewhat more."""
ROUTERS_AT_ONCE = 32
"""Called at the same time, each within TIMEOUT_S."""
TIMEOUT_S = 0.5
"""An operator's answer waits no longer for routers that are away; the poll is quicker than a second attempt."""
ACK_BYTES_MAX = 64 * 1024
KNOWN_FOR_S = 600.0
"""A router that was silent for longer is forgotten."""
_ADMIN_URL = re.compile(r"https?://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):\d{1,5}")
"""An origin, without user name, path or query."""


@dataclass(frozen=True, slots=True)
class _Answer:
    ack: RevocationAck
    at: datetime


@contextmanager
def announced() -> Iterator[None]:
    """Sends what no router was told of yet, and takes the answers after the body of the `with` has run."""
    revocations = list(Revocation.objects.filter(announced_at=None).order_by("epoch")[:REVOCATIONS_AT_ONCE])
    if not revocations:
        yield
        return
    now = timezone.now()
    routers = list(RouterStatus.objects.filter(seen_at__gte=now - timedelta(seconds=KNOWN_FOR_S)))
    with ThreadPoolExecutor(max_workers=ROUTERS_AT_ONCE) as pool:
        body = _message(revocations)
        answers = [pool.submit(_send, row.router_id, row.admin_url, body) for row in routers if row.admin_url]
        _claim(revocations, routers, now)
        yield
        _take(answers)


def _claim(revocations: Sequence[Revocation], routers: Sequence[RouterStatus], now: datetime) -> None:
    """Never raises: the snapshot is published whatever becomes of this, and the next tick announces once more."""
    try:
        await_acks(revocations, [(row.router_id, row.seen_at, row.epoch) for row in routers], at=now)
    except DatabaseError as error:
        log.warning("revocations are announced, but not noted as such: %s", type(error).__name__)


def _message(revocations: Sequence[Revocation]) -> bytes:
    return encode_revocations(
        sign_revocation(
            settings.FLEET_KEY,
            epoch=row.epoch,
            kind=row.kind,  # type: ignore[arg-type]  # a constraint of the database
            subject=row.subject,
            retired=row.retired if row.kind == Revocation.Kind.MODEL else 0,
        )
        for row in revocations
    )


def _send(router: str, admin_url: str, body: bytes) -> _Answer | None:
    """In a thread of its own; None when the router did not answer as it should."""
    if not _ADMIN_URL.fullmatch(admin_url):
        log.warning("the admin address of router %s is not an origin", router)
        return None
    try:
        # Certificates are loaded only where they are needed: that takes longer than all the rest.
        checks_certificate = admin_url.startswith("https:")
        with (
            httpx.Client(
                timeout=TIMEOUT_S, trust_env=False, follow_redirects=False, verify=checks_certificate
            ) as client,
            client.stream("POST", admin_url + REVOCATIONS_PATH, content=body) as answer,
        ):
            data = _bounded(answer) if answer.status_code == 200 else b""
        ack = open_ack(data, settings.FLEET_KEY)
    except (httpx.HTTPError, httpx.InvalidURL, RevocationError) as error:
        log.info("a revocation did not reach router %s (%s): it will poll", router, type(error).__name__)
        return None
    return _Answer(ack, timezone.now()) if ack.router == router else None


def _bounded(answer: httpx.Response) -> bytes:
    """Its body; b"" when it is longer or slower than an acknowledgement can be."""
    data, give_up_at = b"", time.monotonic() + TIMEOUT_S
    for piece in answer.iter_raw():
        data += piece
        if len(data) > ACK_BYTES_MAX or time.monotonic() > give_up_at:
            return b""
    return data


def _take(answers: Sequence[Future[_Answer | None]]) -> None:
    """An acknowledgement that cannot be written is repeated by the router's next poll."""
    for future in as_completed(answers):
        answer = future.result()
        if answer is not None:
            try:
                note_direct_ack(answer.ack.router, answer.ack.epochs, at=answer.at)
            except DatabaseError as error:
                log.warning("an acknowledgement was not kept: %s", type(error).__name__)

"""Which router serves which snapshot: from polls and from Valkey; unseen is unknown, and forgotten in the end."""

from __future__ import annotations

from datetime import timedelta

import pytest
import redis
from django.utils import timezone

from controlplane.errors import Invalid
from controlplane.snapshots.hellos import forget_routers, note_hello, parse_hello
from controlplane.snapshots.models import RouterStatus
from controlplane.snapshots.selectors import rollout
from controlplane.snapshots.services import publish_pending
from router.contract.channels import ROUTERS_HASH
from router.contract.hello import RouterHello, encode_hello


def _hello(router: str = "r1", version: int = 1, at: float = 0.0, **more: object) -> RouterHello:
    return RouterHello(router=router, boot="b1", at=at, snapshot_version=version, epoch=1, **more)


@pytest.fixture
def published(support) -> None:
    publish_pending()


def test_nothing_published_and_no_router_is_not_complete(db) -> None:
    seen = rollout()
    assert (seen.version, seen.routers_total, seen.is_complete) == (None, 0, False)


def test_it_counts_the_routers_on_the_published_version(published) -> None:
    now = timezone.now()
    note_hello(_hello("r1", 1), now)
    note_hello(_hello("r2", 0, last_error="snapshot signature does not fit"), now)
    seen = rollout(now)
    assert (seen.version, seen.routers_total, seen.routers_on_version) == (1, 2, 1)
    assert not seen.is_complete
    assert seen.routers[1].last_error == "snapshot signature does not fit"


@pytest.mark.parametrize(("age_s", "state"), [(0, "fresh"), (10, "fresh"), (10.1, "stale"), (600, "stale")])
def test_a_router_unseen_is_unknown(published, age_s: float, state: str) -> None:
    now = timezone.now()
    note_hello(_hello(), now - timedelta(seconds=age_s))
    seen = rollout(now)
    assert seen.routers[0].state == state
    assert (seen.routers_total, seen.routers_on_version) == (1, int(state == "fresh"))


def test_a_router_unseen_for_ten_minutes_is_forgotten(published, valkey_url: str) -> None:
    now = timezone.now()
    note_hello(_hello("r1"), now - timedelta(seconds=601))
    with redis.Redis.from_url(valkey_url) as client:
        client.hset(ROUTERS_HASH, "r2", encode_hello(_hello("r2", at=now.timestamp() - 601)))
        assert rollout(now).routers_total == 0
        assert forget_routers(unseen_since=now - timedelta(seconds=600)) == 1
        assert not client.exists(ROUTERS_HASH)
    assert not RouterStatus.objects.exists()


def test_the_younger_word_counts(published, valkey_url: str) -> None:
    now = timezone.now()
    note_hello(_hello("r1", 0), now - timedelta(seconds=5))
    with redis.Redis.from_url(valkey_url) as client:
        client.hset(ROUTERS_HASH, "r1", encode_hello(_hello("r1", 1, at=now.timestamp() - 1)))
        client.hset(ROUTERS_HASH, "r9", b"garbage")
    seen = rollout(now)
    assert [(router.router, router.version) for router in seen.routers] == [("r1", 1)]
    assert seen.is_complete


def test_an_unchanged_router_is_written_every_two_seconds_at_most(db) -> None:
    start = timezone.now()

    def seen_after(seconds: float, **more: object) -> float:
        note_hello(_hello(**more), start + timedelta(seconds=seconds))
        return (RouterStatus.objects.get().seen_at - start).total_seconds()

    assert [seen_after(0), seen_after(1), seen_after(1.9), seen_after(2.1), seen_after(3)] == [0, 0, 0, 2.1, 2.1]
    assert seen_after(3.5, version=2) == 3.5
    assert seen_after(3.6, version=2) == 3.5


def test_the_time_of_a_version_is_when_it_was_first_reported(db) -> None:
    start = timezone.now()
    for second in (0, 5, 10):
        note_hello(_hello(version=1), start + timedelta(seconds=second))
    assert RouterStatus.objects.get().version_at == start
    note_hello(_hello(version=2), start + timedelta(seconds=11))
    assert RouterStatus.objects.get().version_at == start + timedelta(seconds=11)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b"\xff",
        b'{"router":"r"}',
        b'{"router":"","boot":"b","at":0,"snapshot_version":0,"epoch":0}',
        b'{"router":"r\\u0000","boot":"b","at":0,"snapshot_version":0,"epoch":0}',
        b'{"router":"r","boot":"b","at":0,"snapshot_version":-1,"epoch":0}',
        b'{"router":"r","boot":"b","at":0,"snapshot_version":9223372036854775807,"epoch":0}',
        b'{"router":"r","boot":"b","at":"now","snapshot_version":0,"epoch":0}',
    ],
)
def test_a_body_that_is_no_hello_is_refused(body: bytes) -> None:
    with pytest.raises(Invalid):
        parse_hello(body)


def test_odd_figures_of_a_hello_are_bounded(db) -> None:
    hello = _hello(inflight=10**12, started_at=1e300, last_error="x" * 10_000, admin_url="y" * 10_000)
    note_hello(hello, timezone.now())
    row = RouterStatus.objects.get()
    assert (len(row.last_error), len(row.admin_url), row.started_at) == (500, 300, None)

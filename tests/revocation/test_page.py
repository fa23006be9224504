"""The tenants page says what a revocation does and how far it has come; the policies page, which routers diverge."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.revocations.models import Revocation, RouterAck
from controlplane.snapshots.models import PublishedSnapshot, RouterStatus
from tests.control.conftest import no_valkey  # noqa: F401 - fixture
from tests.dashboard import story

pytestmark = pytest.mark.django_db
AGO = timedelta(minutes=5)


@pytest.fixture
def operator() -> Client:
    client = Client()
    client.force_login(story.make_user())
    return client


def _revoked(*, denies: bool = False, acked_ms: float | None = None, ago: timedelta = AGO) -> None:
    at = timezone.now() - ago
    row = Revocation.objects.create(
        epoch=7, kind="key", subject="acmekey00000", tenant="acme", audit_id=1, created_at=at, announced_at=at,
        denies_when_stale=denies, actor="user:alice", reason="leaked",
    )  # fmt: skip
    acked_at = None if acked_ms is None else at + timedelta(milliseconds=acked_ms)
    RouterAck.objects.create(revocation=row, router_id="r1", seen_at=at, acked_at=acked_at, way="")


def _text(client: Client, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200
    return " ".join(answer.content.decode().split())


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ({"acked_ms": 41.0}, ["unreachable now; resident until evicted", "41 ms", "leaked", "acmekey00000"]),
        ({"ago": timedelta(seconds=5)}, ["0 of 1 routers refuse it", "waiting"]),
        ({}, ["0 of 1 routers refuse it", "cut off: may go on serving"]),
        ({"denies": True}, ["unreachable now; resident until evicted", "cut off, stopped by itself"]),
    ],
)
def test_it_shows_each_routers_answer_and_time(operator: Client, made: dict, words: list[str]) -> None:
    _revoked(**made)
    text = _text(operator, "/tenants/")
    assert all(word in text for word in words), words


def test_it_says_so_when_nothing_was_revoked(operator: Client) -> None:
    assert "Nothing was revoked yet." in _text(operator, "/tenants/")


def test_it_names_routers_that_serve_something_else(operator: Client) -> None:
    now = timezone.now()
    for version, ago in ((1, 600), (2, 90)):
        PublishedSnapshot.objects.create(
            version=version, epoch=version, created_at=now - timedelta(seconds=ago), digest=str(version) * 64,
            document="", through_audit_id=version,
        )  # fmt: skip
    for router, version, digest in (("good", 2, "2" * 64), ("behind", 1, "1" * 64), ("odd", 2, "f" * 64)):
        RouterStatus.objects.create(
            router_id=router, boot="b", snapshot_version=version, epoch=version, digest=digest, seen_at=now
        )
    text = _text(operator, "/policies/")
    assert "up to date" in text and "behind for" in text and "another content for" in text
    assert "2" * 12 in text and "f" * 12 in text and "f" * 13 not in text

"""Which router said that it refuses what was revoked, by which way, and when others are known to have stopped."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import time_machine
from django.conf import settings as django_settings
from django.utils import timezone

from controlplane.fleet.models import Finding
from controlplane.namespaces.key_services import issue_key, revoke_key
from controlplane.namespaces.services import update_namespace
from controlplane.revocations.models import Revocation, RouterAck
from controlplane.revocations.selectors import RevocationSeen, seen
from controlplane.snapshots.announcing import announced
from controlplane.snapshots.divergence import KIND, watch_routers
from controlplane.snapshots.hellos import note_hello
from controlplane.snapshots.models import RouterStatus
from controlplane.snapshots.selectors import last_seen, rollout
from controlplane.snapshots.services import publish_after_commit, publish_pending
from router.contract.hello import RouterHello
from router.contract.revocation import encode_ack, open_revocations, sign_ack
from tests.control.conftest import ACTOR, no_valkey, support  # noqa: F401 - fixtures

NAMESPACE = "acme/support"


class FakeRouter:
    """An admin port: records messages, and acknowledges as it is told to."""

    def __init__(self, name: str = "r1") -> None:
        self.name = name
        self.messages: list[bytes] = []
        self.status = 200
        self.forged = False
        self.url = ""

    def answer(self, body: bytes) -> bytes:
        self.messages.append(body)
        fleet_key = django_settings.FLEET_KEY
        epochs = [item.epoch for item in open_revocations(body, fleet_key)]
        ack = sign_ack(fleet_key, router=self.name, boot="b", epochs=epochs)
        return encode_ack(ack).replace(b'"router":"', b'"router":"x') if self.forged else encode_ack(ack)


@contextmanager
def listening(router: FakeRouter) -> Iterator[FakeRouter]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/revocations"
            answer = router.answer(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(router.status)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    router.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield router
    finally:
        server.shutdown()
        server.server_close()


def _hello(router: FakeRouter | str, *, version: int, epoch: int, digest: str = "") -> RouterHello:
    name, url = (router, "") if isinstance(router, str) else (router.name, router.url)
    return RouterHello(name, "b", timezone.now().timestamp(), version, epoch, admin_url=url, digest=digest)


@pytest.fixture
def key_ids(support) -> list[str]:  # noqa: F811
    return [issue_key(actor=ACTOR, namespace=NAMESPACE, name="k").key.key_id for _ in range(3)]


def _seen() -> RevocationSeen:
    now = timezone.now()
    return seen(Revocation.objects.prefetch_related("acks")[:1], last_seen(now), now)[0]


def _states() -> dict[str, str]:
    return {ack.router: ack.state for ack in _seen().routers}


def test_a_revocation_goes_straight_to_the_routers_and_is_acknowledged(key_ids) -> None:
    published = publish_pending()
    with listening(FakeRouter()) as router:
        note_hello(_hello(router, version=published.version, epoch=published.epoch), timezone.now())
        revoke_key(actor=ACTOR, key_id=key_ids[0])
        publish_after_commit()
    [message] = router.messages
    [told] = open_revocations(message, django_settings.FLEET_KEY)
    assert (told.kind, told.subject, told.epoch) == ("key", key_ids[0], Revocation.objects.get().epoch)
    ack = RouterAck.objects.get()
    assert (ack.router_id, ack.way) == ("r1", "direct") and ack.acked_at is not None
    assert _seen().state == "effective" and _seen().ms is not None


def test_it_is_announced_once(key_ids) -> None:
    note_hello(_hello("r1", version=1, epoch=1), timezone.now())
    revoke_key(actor=ACTOR, key_id=key_ids[0])
    publish_after_commit()
    at = Revocation.objects.get().announced_at
    with announced():
        pass
    assert at is not None and Revocation.objects.get().announced_at == at


@pytest.mark.parametrize("fault", ["forged", "status", "away", "not an origin"])
def test_an_answer_that_is_not_the_routers_own_acknowledges_nothing(key_ids, fault: str) -> None:
    published = publish_pending()
    router = FakeRouter()
    with listening(router):
        router.forged, router.status = fault == "forged", 500 if fault == "status" else 200
        if fault == "away":
            router.url = "http://127.0.0.1:1"
        elif fault == "not an origin":
            router.url = router.url.replace("http://", "http://user@")
        note_hello(_hello(router, version=published.version, epoch=published.epoch), timezone.now())
        revoke_key(actor=ACTOR, key_id=key_ids[0])
        publish_after_commit()
    assert len(router.messages) == (0 if fault in ("away", "not an origin") else 1)
    assert _states() == {"r1": "pending"}
    current = publish_pending()
    note_hello(_hello(router, version=current.version, epoch=current.epoch), timezone.now())
    assert RouterAck.objects.get().way == "poll" and _seen().state == "effective"


def test_a_signed_answer_of_another_router_is_not_taken(key_ids) -> None:
    published = publish_pending()
    with listening(FakeRouter("r2")) as other:
        hello = RouterHello("r1", "b", timezone.now().timestamp(), published.version, 1, admin_url=other.url)
        note_hello(hello, timezone.now())
        revoke_key(actor=ACTOR, key_id=key_ids[0])
        publish_after_commit()
    assert _states() == {"r1": "pending"}


def test_a_poll_acknowledges_up_to_its_epoch_only(key_ids) -> None:
    version = publish_pending().version
    note_hello(_hello("r1", version=version, epoch=1), timezone.now())
    for key_id in key_ids[:2]:
        revoke_key(actor=ACTOR, key_id=key_id)
        publish_after_commit()
    first, second = Revocation.objects.order_by("epoch")
    note_hello(_hello("r1", version=version, epoch=first.epoch), timezone.now())
    assert first.acks.get().acked_at is not None and second.acks.get().acked_at is None


def test_an_epoch_of_a_lost_database_acknowledges_nothing(key_ids) -> None:
    """The router serves a snapshot that this database never published: its epochs mean other revocations."""
    version = publish_pending().version
    note_hello(_hello("r1", version=version, epoch=1), timezone.now())
    revoke_key(actor=ACTOR, key_id=key_ids[0])
    publish_after_commit()
    note_hello(_hello("r1", version=version + 1000, epoch=90), timezone.now())
    assert _states() == {"r1": "pending"}


def test_a_router_that_is_cut_off_has_stopped_only_where_the_namespace_denies(key_ids) -> None:
    with time_machine.travel(timezone.now(), tick=False) as clock:
        note_hello(_hello("r1", version=publish_pending().version, epoch=1), timezone.now())
        revoke_key(actor=ACTOR, key_id=key_ids[0])
        publish_after_commit()
        clock.shift(timedelta(seconds=59))
        assert (_states(), _seen().state) == ({"r1": "pending"}, "pending")
        clock.shift(timedelta(seconds=2))
        assert (_states(), _seen().state) == ({"r1": "silent"}, "pending")
        update_namespace(actor=ACTOR, namespace=NAMESPACE, on_stale="deny")
        note_hello(_hello("r1", version=1, epoch=1), timezone.now())
        revoke_key(actor=ACTOR, key_id=key_ids[1])
        publish_after_commit()
        clock.shift(timedelta(seconds=30))
        note_hello(_hello("r1", version=1, epoch=1), timezone.now())
        clock.shift(timedelta(seconds=59))
        assert _states() == {"r1": "pending"}
        clock.shift(timedelta(seconds=2))
        assert (_states(), _seen().state) == ({"r1": "lease_over"}, "effective")
        assert _seen().ms == pytest.approx(90_000)


def test_without_a_router_there_is_nothing_to_wait_for(key_ids) -> None:
    revoke_key(actor=ACTOR, key_id=key_ids[0])
    assert _seen().state == "pending"
    publish_after_commit()
    assert (_seen().state, _seen().routers) == ("effective", [])


def test_a_router_that_came_back_is_settled_by_the_tick(key_ids) -> None:
    note_hello(_hello("r1", version=publish_pending().version, epoch=1), timezone.now())
    revoke_key(actor=ACTOR, key_id=key_ids[0])
    publish_after_commit()
    RouterStatus.objects.all().delete()
    current = publish_pending()
    note_hello(_hello("r1", version=current.version, epoch=current.epoch), timezone.now())
    assert _states() == {"r1": "pending"}
    watch_routers(timezone.now())
    assert _states() == {"r1": "acknowledged"}


def test_a_router_that_diverges_for_half_a_minute_is_a_finding_until_it_does_not(support) -> None:  # noqa: F811
    with time_machine.travel(timezone.now(), tick=False) as clock:
        old = publish_pending()
        clock.shift(timedelta(minutes=5))
        issue_key(actor=ACTOR, namespace=NAMESPACE, name="k")
        current = publish_pending()

        def tick(version: int, digest: str = "", *, after_s: float) -> list[str]:
            clock.shift(timedelta(seconds=after_s))
            note_hello(_hello("r1", version=version, epoch=1, digest=digest), timezone.now())
            watch_routers(timezone.now())
            return list(Finding.objects.filter(kind=KIND, resolved_at=None).values_list("subject", flat=True))

        assert tick(old.version, after_s=29) == []
        assert rollout().routers[0].behind_s == pytest.approx(29)
        assert tick(old.version, after_s=2) == ["router:r1"]
        assert tick(current.version, current.digest, after_s=5) == []
        assert rollout().routers[0].behind_s is None
        assert tick(current.version, "0" * 64, after_s=5) == ["router:r1"]
        clock.shift(timedelta(seconds=11))
        watch_routers(timezone.now())
        assert not Finding.objects.filter(kind=KIND, resolved_at=None).exists(), "a silent router is unknown"

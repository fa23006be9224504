"""How routers fetch snapshots over HTTP: exact bytes, ETag, a cheap poll that publishes what is due."""

from __future__ import annotations

import pytest
from django.conf import settings as django_settings
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from controlplane.policies.services import set_watermark
from controlplane.snapshots.hellos import note_hello
from controlplane.snapshots.models import RouterStatus
from controlplane.snapshots.selectors import current
from controlplane.snapshots.services import publish_pending
from router.contract.hello import RouterHello, encode_hello
from router.contract.snapshot import open_document
from tests.control.conftest import ACTOR

POLL = "/api/v1/snapshots/poll"
CURRENT = "/api/v1/snapshots/current"


def _poll(client, version: int, router: str = "r1"):
    hello = RouterHello(router=router, boot="b", at=timezone.now().timestamp(), snapshot_version=version, epoch=1)
    return client.generic("POST", POLL, encode_hello(hello), content_type="application/json")


def test_a_router_without_a_snapshot_gets_the_stored_bytes(router_client, support) -> None:
    publish_pending()
    answer = _poll(router_client, 0)
    assert (answer.status_code, answer["content-type"]) == (200, "application/json")
    assert answer.content.decode() == current().document
    assert open_document(answer.content, django_settings.FLEET_KEY)[0].version == 1


def test_an_up_to_date_router_gets_204_and_is_noted(router_client, support) -> None:
    publish_pending()
    answer = _poll(router_client, 1)
    assert (answer.status_code, answer.content) == (204, b"")
    assert RouterStatus.objects.get().snapshot_version == 1


def test_the_first_poll_of_an_empty_installation_brings_the_first_snapshot(router_client, db) -> None:
    answer = _poll(router_client, 0)
    assert answer.status_code == 200
    document, snapshot = open_document(answer.content, django_settings.FLEET_KEY)
    assert (document.version, snapshot.keys) == (1, {})
    assert _poll(router_client, 1).status_code == 204


def test_a_poll_publishes_what_is_due(router_client, support, pool) -> None:
    publish_pending()
    set_watermark(actor=ACTOR, scope="global", low=0.5, high=0.6)
    answer = _poll(router_client, 1)
    document, snapshot = open_document(answer.content, django_settings.FLEET_KEY)
    assert (document.version, snapshot.pools["llama"].watermark.high) == (2, 0.6)


@pytest.mark.parametrize("published", [True, False])
def test_a_router_ahead_of_a_restored_database_is_overtaken(router_client, support, published: bool) -> None:
    if published:
        publish_pending()
    hello = RouterHello(router="r1", boot="b", at=0.0, snapshot_version=50, epoch=7)
    answer = router_client.generic("POST", POLL, encode_hello(hello), content_type="application/json")
    document, snapshot = open_document(answer.content, django_settings.FLEET_KEY)
    assert (document.version, document.epoch, list(snapshot.tenants)) == (51, 7, ["acme"])
    assert _poll(router_client, 51).status_code == 204
    assert _poll(router_client, 50).status_code == 200
    assert current().version == 51


@pytest.mark.parametrize("version", [0, 1])
def test_a_poll_costs_three_queries(router_client, support, version: int) -> None:
    publish_pending()
    with CaptureQueriesContext(connection) as first:
        _poll(router_client, version)
    with CaptureQueriesContext(connection) as again:
        _poll(router_client, version)
    assert len(first) <= 3
    assert len(again) == 2 and not any(query["sql"].startswith(("INSERT", "UPDATE")) for query in again)


def test_a_poll_is_answered_though_its_sign_of_life_cannot_be_kept(router_client, support, monkeypatch) -> None:
    def locked(*_: object) -> None:
        raise OperationalError("database is locked")

    publish_pending()
    monkeypatch.setattr("controlplane.api.snapshots.note_hello", locked)
    assert _poll(router_client, 0).status_code == 200


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"\xff", b"x" * 10_000])
def test_a_body_that_is_no_hello_is_refused(router_client, db, body: bytes) -> None:
    answer = router_client.generic("POST", POLL, body, content_type="application/json")
    assert answer.status_code in (413, 422)
    assert not RouterStatus.objects.exists()


def test_the_current_snapshot_has_an_etag(router_client, bob, support, pool) -> None:
    assert router_client.get(CURRENT).status_code == 404
    publish_pending()
    answer = bob.get(CURRENT)
    assert answer.content.decode() == current().document
    etag = answer["etag"]
    unchanged = router_client.get(CURRENT, headers={"if-none-match": f'"other", W/{etag}'})
    assert (unchanged.status_code, unchanged.content, unchanged["etag"]) == (304, b"", etag)
    set_watermark(actor=ACTOR, scope="global", low=0.5, high=0.6)
    publish_pending()
    assert router_client.get(CURRENT, headers={"if-none-match": etag}).status_code == 200


def test_operators_see_the_heads_and_the_rollout(bob, support) -> None:
    publish_pending()
    hello = RouterHello(router="r1", boot="b", at=0.0, snapshot_version=1, epoch=1)
    note_hello(hello, timezone.now())
    (head,) = bob.get("/api/v1/snapshots").json()["items"]
    assert (head["version"], "document" in head) == (1, False)
    rollout = bob.get("/api/v1/routers").json()
    assert (rollout["version"], rollout["routers_total"], rollout["routers_on_version"]) == (1, 1, 1)
    assert rollout["routers"][0]["state"] == "fresh"

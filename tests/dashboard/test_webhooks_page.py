"""The Webhooks page: receivers added with a secret shown once, tested, and every delivery to be sent again."""

from __future__ import annotations

from datetime import datetime

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from controlplane.audit.models import AuditEntry
from controlplane.deadletters.models import TaskDelivery
from controlplane.fleet.findings import Observation, observe
from controlplane.webhooks.delivering import attempt, collect, due
from controlplane.webhooks.models import Delivery, Subscription
from tests.webhooks.conftest import Receiver, receiver, surroundings

__all__ = ["receiver", "surroundings"]
pytestmark = pytest.mark.django_db


@pytest.fixture
def added(operator: Client, receiver: Receiver) -> Receiver:
    operator.post("/webhooks/", {"slug": "pager", "url": receiver.url, "format": "alertmanager", "events": ["*"]})
    collect()
    return receiver


def _happen() -> None:
    observe([Observation("kv_event_gap", "demo/w1", "Events are missing.")], at=timezone.now())
    collect()
    for delivery in due():
        attempt(delivery)


def test_the_secret_is_shown_once_and_the_addresss_path_never(operator: Client, receiver: Receiver) -> None:
    form = {"slug": "pager", "url": receiver.url, "format": "tidemark", "events": ["alert.*", "violation"]}
    answer = operator.post("/webhooks/", form)
    made = answer.content.decode()
    assert "whsec_" in made and "s3cret" not in made and "no-store" in answer["Cache-Control"]
    assert Subscription.objects.get().events == ["alert.*", "violation"]
    again = operator.get("/webhooks/").content.decode()
    assert "whsec_" not in again and "s3cret" not in again and "pager" in again


def test_faults_stand_beside_their_fields(operator: Client) -> None:
    answer = operator.post("/webhooks/", {"slug": "No Slug", "url": "http://127.0.0.1:1/x", "format": "tidemark"})
    html = answer.content.decode()
    assert answer.status_code == 422 and "Name at least one of" in html and 'value="No Slug"' in html
    outside = {"slug": "out", "url": "http://169.254.169.254/x", "format": "tidemark", "events": ["*"]}
    assert operator.post("/webhooks/", outside).status_code == 422
    assert not Subscription.objects.exists()


def test_a_test_is_sent_and_its_answer_told(operator: Client, added: Receiver) -> None:
    assert "took the test: status 200" in operator.post("/webhooks/pager/test/", follow=True).content.decode()
    added.status = 500
    failed = operator.post("/webhooks/pager/test/", follow=True).content.decode()
    assert "did not take the test" in failed and "status 500" in failed
    assert len(added.got) == 2


def test_deliveries_are_listed_filtered_and_sent_again(operator: Client, added: Receiver) -> None:
    added.status = 503
    _happen()
    waiting = operator.get("/webhooks/?state=pending").content.decode()
    assert "finding.opened" in waiting and "status 503" in waiting
    assert "No delivery is like that." in operator.get("/webhooks/?state=dead").content.decode()
    Delivery.objects.update(state="dead", next_attempt_at=None, finished_at=timezone.now())
    dead = operator.get("/webhooks/?state=dead&webhook=pager").content.decode()
    assert "given up" in dead and "Send again" in dead
    row = Delivery.objects.get()
    operator.post(f"/webhooks/deliveries/{row.pk}/again/")
    added.status = 200
    for delivery in due():
        attempt(delivery)
    row.refresh_from_db()
    assert row.state == "delivered"


def test_one_is_disabled_enabled_and_removed_by_its_typed_name(operator: Client, added: Receiver) -> None:
    operator.post("/webhooks/pager/disable/")
    assert not Subscription.objects.get().enabled
    operator.post("/webhooks/pager/enable/")
    assert Subscription.objects.get().enabled
    refused = operator.post("/webhooks/pager/delete/", {"typed": "page"}, follow=True).content.decode()
    assert "Nothing was removed" in refused and Subscription.objects.exists()
    operator.post("/webhooks/pager/delete/", {"typed": "pager"})
    assert not Subscription.objects.exists()
    assert operator.post("/webhooks/pager/test/").status_code == 404
    actions = list(AuditEntry.objects.filter(object_type="webhook").values_list("action", flat=True))
    assert {"webhook.create", "webhook.update", "webhook.delete"} <= set(actions)


def test_given_up_work_begins_anew(operator: Client, now: datetime) -> None:
    letter = TaskDelivery.objects.create(
        task="canary", subject="7", deliveries=3, error="ValueError at canary_run.py:71", first_at=now, last_at=now,
        dead_at=now,
    )  # fmt: skip
    assert "ValueError at canary_run.py:71" in operator.get("/webhooks/").content.decode()
    assert "begins anew" in operator.post(f"/webhooks/given-up/{letter.pk}/again/", follow=True).content.decode()


def test_a_viewer_sees_and_changes_nothing(viewer: Client, receiver: Receiver) -> None:
    html = viewer.get("/webhooks/").content.decode()
    assert "Nobody is told of anything." in html and "Add the receiver" not in html
    form = {"slug": "pager", "url": receiver.url, "format": "tidemark", "events": ["*"]}
    assert viewer.post("/webhooks/", form).status_code == 403
    assert viewer.post("/webhooks/pager/test/").status_code == 403


def test_it_asks_few_queries(viewer: Client) -> None:
    with CaptureQueriesContext(connection) as asked:
        assert viewer.get("/webhooks/").status_code == 200
    assert len(asked) <= 12

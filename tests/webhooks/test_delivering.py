"""Events reach their receivers, signed and once; what cannot be delivered is tried again, then a dead letter."""

from __future__ import annotations

import hashlib
import hmac
import json
from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.audit.models import AuditEntry
from controlplane.audit.services import record
from controlplane.fleet.findings import Observation, observe, resolve
from controlplane.fleet.models import Finding
from controlplane.isolation.models import IsolationViolation
from controlplane.namespaces.services import create_namespace, set_namespace_status
from controlplane.outbox import ATTEMPTS_MAX, WAITS_S
from controlplane.tenants.services import create_tenant
from controlplane.webhooks import delivering, tasks
from controlplane.webhooks.delivering import attempt, collect, due, redeliver, send_test
from controlplane.webhooks.models import Delivery, EventCursor, Subscription
from controlplane.webhooks.services import create_subscription, update_subscription
from tests.webhooks.conftest import ACTOR

pytestmark = pytest.mark.django_db


def _happen(subject: str = "llama/w1") -> None:
    observe([Observation("kv_event_gap", subject, "Events are missing.")], at=timezone.now())


def _names() -> list[str]:
    return list(Delivery.objects.order_by("id").values_list("event", flat=True))


def _come_due() -> list[int]:
    Delivery.objects.filter(state="pending").update(next_attempt_at=timezone.now())
    return due()


@pytest.fixture(autouse=True)
def begun(db) -> None:
    """What is there at the first look is not told."""
    _happen("llama/w0")
    collect()
    assert EventCursor.objects.count() >= 4 and not Delivery.objects.exists()


def test_it_is_signed_so_that_the_receiver_can_tell_who_said_what_when(pager, receiver) -> None:
    _happen()
    collect()
    before = int(timezone.now().timestamp())
    for delivery in due():
        assert attempt(delivery).state == "delivered"
    [(headers, body)] = receiver.got
    stamp = headers["tidemark-timestamp"]
    assert before - 1 <= int(stamp) <= before + 5
    expected = hmac.new(pager.secret.encode(), stamp.encode() + b"." + body, hashlib.sha256).hexdigest()
    assert headers["tidemark-signature"] == f"v1={expected}"
    assert headers["tidemark-event"] == "finding.opened" and headers["tidemark-delivery"].isdigit()
    told = json.loads(body)
    assert (told["event"], told["subject"], told["details"]["kind"]) == ("finding.opened", "llama/w1", "kv_event_gap")


def test_what_happens_between_a_webhook_and_the_very_first_look_is_told(pager, receiver) -> None:
    EventCursor.objects.all().delete()
    _happen("llama/w7")
    collect()
    assert _names() == ["finding.opened"]
    assert [row.payload["subject"] for row in Delivery.objects.all()] == ["llama/w7"]


def test_each_event_is_told_once_however_often_it_is_looked_for(pager, receiver) -> None:
    _happen()
    for _ in range(3):
        collect()
        for delivery in due():
            attempt(delivery)
    assert len(receiver.got) == 1


def test_every_kind_of_event_is_found(pager) -> None:
    _happen()
    resolve(["llama/w1"], ["kv_event_gap"], at=timezone.now())
    IsolationViolation.objects.create(
        at=timezone.now(), request_id="r1", tenant="acme", namespace="acme/support", pool="llama", worker="llama/w1",
        model="m", prompt_tokens=9, cached_tokens=8, bound_tokens=0, evidence="e" * 32,
    )  # fmt: skip
    create_tenant(actor=ACTOR, slug="acme", name="Acme")
    create_namespace(actor=ACTOR, tenant="acme", slug="support")
    set_namespace_status(actor=ACTOR, namespace="acme/support", status="revoked", reason="leak")
    for action in ("rollout.start", "worker.drain", "change.propose"):
        record(
            actor=ACTOR, action=action, object_type="x", object_id="y", before=None, after=None, affects_routing=False
        )
    collect()
    assert sorted(_names()) == [
        "change.propose", "finding.opened", "finding.resolved", "revocation", "rollout.start", "violation",
        "worker.drain",
    ]  # fmt: skip
    assert "e" * 32 not in json.dumps(list(Delivery.objects.values_list("payload", flat=True)))


def test_a_subscription_hears_what_it_named_since_it_was_made(pager, receiver) -> None:
    create_subscription(actor=ACTOR, slug="slow", url=receiver.url, events=["rollout.*", "finding.resolved"])
    _happen()
    resolve(["llama/w1"], ["kv_event_gap"], at=timezone.now())
    Subscription.objects.filter(slug="pager").update(enabled=False)
    collect()
    assert list(Delivery.objects.values_list("subscription__slug", "event")) == [("slow", "finding.resolved")]


def test_a_row_that_commits_late_is_not_missed(pager) -> None:
    for number in range(3):
        _happen(f"llama/w{number + 1}")
    row = Finding.objects.get(subject="llama/w2")
    pk = row.pk
    row.delete()
    collect()
    assert "llama/w2" not in str(list(Delivery.objects.values_list("payload", flat=True)))
    row.pk = pk
    row.save(force_insert=True)
    collect()
    assert "llama/w2" in str(list(Delivery.objects.values_list("payload", flat=True)))


def test_a_failed_attempt_is_repeated_later_and_later_and_then_given_up(pager, receiver) -> None:
    receiver.status = 500
    _happen()
    collect()
    waits = []
    while ids := _come_due():
        before = timezone.now()
        row = attempt(ids[0])
        if row.next_attempt_at:
            waits.append(round((row.next_attempt_at - before).total_seconds()))
    assert waits == list(WAITS_S) and waits == sorted(waits)
    row = Delivery.objects.get()
    assert (row.state, row.attempts, row.last_status) == ("dead", len(WAITS_S) + 1, 500)
    assert len(receiver.got) == len(WAITS_S) + 1
    assert due() == []


def test_a_dead_letter_is_redelivered_by_hand_and_audited(pager, receiver) -> None:
    test_a_failed_attempt_is_repeated_later_and_later_and_then_given_up(pager, receiver)
    receiver.status = 204
    row = redeliver(Delivery.objects.get().pk, actor=ACTOR)
    assert attempt(row.pk).state == "delivered"
    assert AuditEntry.objects.filter(action="webhook.redeliver", actor=ACTOR).exists()


def test_two_processes_never_make_the_same_attempt(pager, receiver) -> None:
    _happen()
    collect()
    [delivery] = due()
    assert attempt(delivery) is not None
    assert attempt(delivery) is None and len(receiver.got) == 1
    Delivery.objects.update(state="pending", next_attempt_at=timezone.now() + timedelta(seconds=30))
    assert attempt(delivery) is None, "not due"


def test_an_attempt_whose_process_died_is_made_again(pager, receiver, monkeypatch) -> None:
    _happen()
    collect()
    [delivery] = due()
    monkeypatch.setattr(delivering, "_sent", lambda row, now: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        attempt(delivery)
    monkeypatch.undo()
    row = Delivery.objects.get()
    assert row.state == "pending" and row.attempts == 1 and row.next_attempt_at > timezone.now()


def test_a_test_is_sent_at_once_and_says_what_came_of_it(pager, receiver) -> None:
    assert send_test("pager", actor=ACTOR).state == "delivered"
    assert json.loads(receiver.got[0][1])["event"] == "test"
    receiver.status = 404
    row = send_test("pager", actor=ACTOR)
    assert (row.state, row.last_status) == ("dead", 404)


def test_a_broken_audit_log_is_an_event_and_a_finding(pager) -> None:
    assert tasks.check_audit() is None
    AuditEntry.objects.filter(id=1)._raw_delete("default")
    assert tasks.check_audit() == 1
    collect()
    assert _names() == ["audit.verify_failed"]
    assert "missing" in Delivery.objects.get().payload["summary"]


def test_old_deliveries_are_forgotten(pager) -> None:
    _happen()
    collect()
    Delivery.objects.update(created_at=timezone.now() - timedelta(days=31))
    assert delivering.forget_old() == 1
    collect()
    assert not Delivery.objects.filter(created_at__lt=timezone.now() - timedelta(days=1)).exists()


def test_another_address_keeps_the_secret(pager, receiver) -> None:
    update_subscription("pager", actor=ACTOR, url=receiver.url.replace("s3cret-path", "elsewhere"))
    send_test("pager", actor=ACTOR)
    headers, body = receiver.got[0]
    signed = headers["tidemark-timestamp"].encode() + b"." + body
    assert headers["tidemark-signature"] == "v1=" + hmac.new(pager.secret.encode(), signed, "sha256").hexdigest()


def test_attempts_whose_process_died_are_used_up(pager, receiver) -> None:
    _happen()
    collect()
    Delivery.objects.update(attempts=ATTEMPTS_MAX)
    [delivery] = due()
    assert attempt(delivery).state == "dead" and not receiver.got

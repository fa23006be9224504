"""A finished report reaches its readers by mail and webhook; what fails is tried again, given up, and visible."""

from __future__ import annotations

import json
import smtplib
from datetime import timedelta

import pytest
from django.core import mail as outbox
from django.core.mail import EmailMultiAlternatives
from django.utils import timezone

from controlplane.audit.models import AuditEntry
from controlplane.errors import Conflict, Invalid
from controlplane.outbox import ATTEMPTS_MAX, WAITS_S
from controlplane.reports import delivering, producing, services
from controlplane.reports.delivering import attempt, due, redeliver, told_of
from controlplane.reports.models import ReportDelivery, ReportRun
from controlplane.reports.no_mail import NoMailServer
from controlplane.webhooks import delivering as webhooks
from controlplane.webhooks.services import create_subscription, update_subscription
from tests.reports import seed
from tests.reports.conftest import ACTOR, made, schedule

pytestmark = pytest.mark.django_db

READER = {"kind": "email", "to": "capacity@example.com"}


@pytest.fixture
def run(db: None) -> ReportRun:
    return made(schedule(name="Weekly <b>capacity</b>", formats=["html", "json"], recipients=[READER]))


def _come_due() -> list[int]:
    ReportDelivery.objects.filter(state="pending").update(next_attempt_at=timezone.now())
    return due()


def test_mail_carries_the_figures_and_the_files(run: ReportRun) -> None:
    assert [attempt(pk).state for pk in due()] == ["delivered"]
    [message] = outbox.outbox
    assert message.to == ["capacity@example.com"] and "\n" not in message.subject
    assert "Weekly" in message.subject and "No router reported" in message.body
    [html] = [part for part, kind in message.alternatives if kind == "text/html"]
    assert "<b>capacity</b>" not in html and "&lt;b&gt;capacity" in html
    assert "<style" not in html and "<script" not in html and "<svg" not in html
    assert [name for name, *_ in message.attachments] == [f"weekly-{run.to_at.date()}.html"]
    assert due() == [] and attempt(ReportDelivery.objects.get().pk) is None


def test_a_failed_mail_is_tried_later_and_later_and_then_given_up(run: ReportRun, monkeypatch) -> None:
    monkeypatch.setattr(EmailMultiAlternatives, "send", _refused)
    waits = []
    while ids := _come_due():
        before = timezone.now()
        row = attempt(ids[0])
        if row.next_attempt_at:
            waits.append(round((row.next_attempt_at - before).total_seconds()))
    assert waits == list(WAITS_S)
    row = ReportDelivery.objects.get()
    assert (row.state, row.attempts) == ("dead", ATTEMPTS_MAX) and "550" in row.last_error
    assert "mailbox of capacity@" not in row.last_error
    [told] = told_of(run)
    assert (told.kind, told.state, told.to) == ("email", "dead", "capacity@example.com")


def test_what_was_given_up_is_sent_again_by_hand_and_audited(run: ReportRun) -> None:
    ReportDelivery.objects.update(state="dead", next_attempt_at=None, attempts=7)
    row = redeliver(ReportDelivery.objects.get().pk, actor=ACTOR)
    with pytest.raises(Conflict):
        redeliver(row.pk, actor=ACTOR)
    assert [attempt(pk).state for pk in due()] == ["delivered"] and len(outbox.outbox) == 1
    assert AuditEntry.objects.first().action == "report.redeliver"


def test_an_attempt_whose_process_died_is_made_again(run: ReportRun) -> None:
    ReportDelivery.objects.update(attempts=1, next_attempt_at=timezone.now() + timedelta(seconds=90))
    assert due() == [] and due(timezone.now() + timedelta(seconds=91))


def test_without_a_mail_server_it_says_so(run: ReportRun, monkeypatch) -> None:
    monkeypatch.setattr(EmailMultiAlternatives, "send", _no_server)
    assert "TIDEMARK_EMAIL_URL" in attempt(due()[0]).last_error


def test_a_webhook_is_told_in_its_own_format_signed_and_once(receiver) -> None:
    for slug, format in (("chat", "slack"), ("hub", "tidemark")):
        create_subscription(actor=ACTOR, slug=slug, url=receiver.url, events=["violation"], format=format)
    seed.make_fleet()
    run = made(
        schedule(
            "hooked", formats=["json"],
            recipients=[{"kind": "webhook", "to": "chat"}, {"kind": "webhook", "to": "hub"}],
        )
    )  # fmt: skip
    for pk in webhooks.due():
        assert webhooks.attempt(pk).state == "delivered"
    delivering.begin(run)
    assert webhooks.due() == []
    bodies = [json.loads(body) for _, body in receiver.got]
    [chat] = [body for body in bodies if set(body) == {"text"}]
    [hub] = [body for body in bodies if "event" in body]
    assert "hooked" in chat["text"] and hub["event"] == "report.ready" and hub["details"]["run"] == run.pk
    assert all(headers["tidemark-signature"].startswith("v1=") for headers, _ in receiver.got)
    assert [(row.kind, row.state) for row in told_of(run)] == [("webhook", "delivered")] * 2


def test_a_webhook_that_is_off_is_not_called_and_shown(receiver) -> None:
    create_subscription(actor=ACTOR, slug="chat", url=receiver.url, events=["*"])
    row = schedule(formats=["json"], recipients=[{"kind": "webhook", "to": "chat"}])
    update_subscription("chat", actor=ACTOR, enabled=False)
    run = made(row)
    assert webhooks.due() == [] and receiver.got == []
    [told] = told_of(run)
    assert told.state == "dead" and "switched off" in told.error


@pytest.mark.parametrize(
    "recipients",
    [[{"kind": "email", "to": "nobody"}], [{"kind": "webhook", "to": "none"}], [{"kind": "fax", "to": "1"}],
     ["a@b.example"], [{"kind": "email", "to": "a@example.com\nBcc: b@example.com"}]],
)  # fmt: skip
def test_recipients_are_checked(recipients: list[object]) -> None:
    with pytest.raises(Invalid) as refused:
        schedule(recipients=recipients)
    assert refused.value.errors[0]["field"] == "recipients"


def test_who_is_told_twice_is_told_once(db: None) -> None:
    row = schedule(recipients=[READER, READER])
    assert row.recipients == [READER]


def test_addresses_of_readers_stay_out_of_the_audit_log(run: ReportRun) -> None:
    services.update_schedule(run.schedule_id, actor=ACTOR, recipients=[])
    assert all("capacity@" not in json.dumps([entry.before, entry.after]) for entry in AuditEntry.objects.all())


def test_nothing_is_sent_for_a_report_that_is_not_done(monkeypatch) -> None:
    run = services.run_now(schedule(recipients=[READER]).pk, actor=ACTOR)
    monkeypatch.setattr(producing, "review", _broken)
    with pytest.raises(RuntimeError):
        producing.make(run.pk)
    assert due() == []


def _refused(self: object, *args: object) -> None:
    raise smtplib.SMTPDataError(550, b"mailbox of capacity@example.com is full")


def _no_server(self: object, *args: object) -> None:
    raise NoMailServer


def _broken(*args: object, **kwargs: object) -> None:
    raise RuntimeError

"""A webhook is no way into the network, and no place where a secret shows (S17, S19)."""

from __future__ import annotations

import json
import logging

import pytest

from controlplane.audit.models import AuditEntry
from controlplane.errors import Invalid
from controlplane.webhooks import sending
from controlplane.webhooks.delivering import send_test
from controlplane.webhooks.models import Delivery, Subscription
from controlplane.webhooks.services import create_subscription
from tests.webhooks.conftest import ACTOR

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest",
        "http://10.0.0.1/outside-of-the-allowed",
        "http://2130706433/decimal",
        "http://0177.0.0.1/octal",
        "http://[::ffff:127.0.0.1]/mapped",
        "http://user:pass@127.0.0.1/userinfo",
        "ftp://127.0.0.1/scheme",
        "file:///etc/passwd",
        "http://127.0.0.1/?query=1",
        "http://127.0.0.1/delete\x7f",
        "",
    ],
)
def test_an_address_that_may_not_be_called_is_refused(url) -> None:
    with pytest.raises(Invalid) as refused:
        create_subscription(actor=ACTOR, slug="x", url=url, events=["*"])
    assert refused.value.errors[0]["field"] == "url"
    assert not Subscription.objects.exists()


def test_the_addresses_of_a_name_are_checked_at_each_attempt(pager, receiver, settings, monkeypatch) -> None:
    monkeypatch.setattr(settings.CONFIG, "webhook_networks", ["10.0.0.0/8"])
    row = send_test("pager", actor=ACTOR)
    assert row.state == "dead" and not receiver.got


def test_a_name_that_moves_is_not_followed(receiver, settings, monkeypatch) -> None:
    """DNS rebinding: the second answer would be the metadata service."""
    answers = iter([["127.0.0.1"], ["169.254.169.254"]])
    monkeypatch.setattr("controlplane.fleet.addresses.system_resolver", lambda host, port: next(answers))
    create_subscription(actor=ACTOR, slug="moves", url=receiver.url.replace("127.0.0.1", "hooks.example"), events=["*"])
    row = send_test("moves", actor=ACTOR)
    assert row.state == "dead" and row.last_status is None and not receiver.got


def test_a_redirect_is_not_followed(pager, receiver) -> None:
    receiver.status, receiver.location = 302, receiver.url
    row = send_test("pager", actor=ACTOR)
    assert (row.state, row.last_status) == ("dead", 302) and len(receiver.got) == 1


def test_a_receiver_that_never_answers_costs_a_bounded_time(pager, receiver, monkeypatch) -> None:
    import socket
    import time

    with socket.create_server(("127.0.0.1", 0)) as silent:
        from controlplane.webhooks.services import update_subscription

        update_subscription("pager", actor=ACTOR, url=f"http://127.0.0.1:{silent.getsockname()[1]}/")
        monkeypatch.setattr(sending, "TIMEOUT_S", 0.3)
        began = time.monotonic()
        row = send_test("pager", actor=ACTOR)
    assert time.monotonic() - began < 3 and row.state == "dead"


def test_secrets_show_nowhere(pager, receiver, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    receiver.status = 500
    send_test("pager", actor=ACTOR)
    rows = [*Subscription.objects.values(), *Delivery.objects.values(), *AuditEntry.objects.values()]
    shown = json.dumps(rows, default=str) + repr(pager) + caplog.text
    assert pager.secret not in shown and "s3cret-path" not in shown
    assert receiver.got and receiver.got[0][0]["host"]

"""Idempotency-Key: a call takes effect once, however often it is sent and whatever is lost on the way (A17)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import OperationalError
from django.utils import timezone

from controlplane.audit.models import AuditEntry
from controlplane.idempotency import services
from controlplane.idempotency.models import IdempotentCall
from controlplane.idempotency.services import InFlight, claim
from controlplane.namespaces.models import ApiKey, CacheNamespace

BODY = {"tenant": "acme", "slug": "more"}
KEY = {"idempotency-key": "4b1f-onboarding-17"}


def _send(api, body=BODY, headers=KEY, path="/api/v1/namespaces"):
    return api.post(path, body, format="json", headers=headers)


def test_a_repeat_gets_the_first_answer_and_changes_nothing(alice) -> None:
    first = _send(alice)
    entries = AuditEntry.objects.count()
    second = _send(alice)
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json() == second.json() and first["etag"] == second["etag"]
    assert "idempotent-replayed" not in first and second["idempotent-replayed"] == "true"
    assert AuditEntry.objects.count() == entries
    assert CacheNamespace.objects.filter(slug="more").count() == 1


def test_the_order_of_fields_makes_no_other_call(alice) -> None:
    _send(alice)
    answer = alice.generic(
        "POST", "/api/v1/namespaces", b'{"slug": "more",  "tenant": "acme"}', content_type="application/json",
        headers=KEY,
    )  # fmt: skip
    assert (answer.status_code, answer["idempotent-replayed"]) == (201, "true")


def test_another_body_or_address_with_the_key_is_refused(alice) -> None:
    _send(alice)
    for answer in (_send(alice, BODY | {"slug": "other"}), _send(alice, path="/api/v1/namespaces?dry_run=false")):
        assert (answer.status_code, answer.json()["code"]) == (422, "key_reused")
    assert not CacheNamespace.objects.filter(slug="other").exists()


def test_a_key_belongs_to_its_caller(alice, charlie) -> None:
    _send(alice)
    answer = _send(charlie, BODY | {"tenant": "globex"})
    assert answer.status_code == 201 and "idempotent-replayed" not in answer


def test_a_call_under_way_is_409_with_a_time_to_wait(alice, monkeypatch) -> None:
    seen = []

    def create(**kwargs: object) -> CacheNamespace:
        seen.append(_send(alice))
        return create_namespace(**kwargs)  # type: ignore[arg-type]

    from controlplane.namespaces import services as namespaces

    create_namespace = namespaces.create_namespace
    monkeypatch.setattr(namespaces, "create_namespace", create)
    assert _send(alice).status_code == 201
    assert (seen[0].status_code, seen[0].json()["code"], seen[0]["retry-after"]) == (409, "in_flight", "1")


def test_after_an_error_the_call_is_tried_afresh(alice, monkeypatch) -> None:
    from controlplane.namespaces import services as namespaces

    def fail(**kwargs: object) -> None:
        raise OperationalError("gone")

    with monkeypatch.context() as broken:
        broken.setattr(namespaces, "create_namespace", fail)
        refused = _send(alice)
    assert (refused.status_code, refused["retry-after"]) == (503, "2")
    assert not IdempotentCall.objects.exists()
    made = _send(alice)
    assert made.status_code == 201 and "idempotent-replayed" not in made


def test_the_answer_commits_with_the_change_or_not_at_all(alice, monkeypatch) -> None:
    def fail(*args: object) -> None:
        raise OperationalError("gone")

    with monkeypatch.context() as broken:
        broken.setattr(services, "finish", fail)
        assert _send(alice).status_code == 503
    assert not CacheNamespace.objects.filter(slug="more").exists()
    assert not AuditEntry.objects.filter(action="namespace.create").exists()


def test_a_lost_attempt_is_taken_over_after_its_lease_and_cannot_commit_any_more(db) -> None:
    now = timezone.now()
    call = {"caller": "user:1", "key": "k", "request_hash": "r"}
    lost = claim(**call, now=now)
    with pytest.raises(InFlight):
        claim(**call, now=now + timedelta(seconds=29))
    second = claim(**call, now=now + timedelta(seconds=31))
    assert isinstance(lost, services.Claim) and isinstance(second, services.Claim)
    with pytest.raises(InFlight):
        services.finish(lost, services.Answer(201, "{}"))
    services.finish(second, services.Answer(201, "{}"))
    assert claim(**call, now=now + timedelta(seconds=32)) == services.Answer(201, "{}")


def test_a_key_is_free_again_after_24_hours(alice) -> None:
    _send(alice)
    IdempotentCall.objects.update(created_at=timezone.now() - timedelta(hours=24))
    assert _send(alice).status_code == 409
    assert _send(alice).json()["code"] == "taken"


def test_old_calls_are_forgotten(alice) -> None:
    _send(alice)
    assert services.forget_old(timezone.now() + timedelta(hours=23)) == 0
    assert services.forget_old(timezone.now() + timedelta(hours=24, seconds=1)) == 1


def test_a_repeated_key_shows_its_secret_again_and_the_database_does_not_hold_it(alice) -> None:
    body = {"namespace": "acme/support", "name": "app"}
    first, second = (_send(alice, body, path="/api/v1/keys").json() for _ in range(2))
    assert first == second and first["key"].startswith("tm_")
    secret = first["key"].split("_", 2)[2]
    assert secret not in str(list(IdempotentCall.objects.values()))
    assert KEY["idempotency-key"] not in str(list(IdempotentCall.objects.values()))
    assert ApiKey.objects.filter(name="app").count() == 1


@pytest.mark.parametrize("key", ["", " ", "x" * 201, "ключ", "a b"])
def test_an_odd_key_is_refused(alice, key: str) -> None:
    answer = _send(alice, headers={"idempotency-key": key})
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_idempotency_key")

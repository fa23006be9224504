"""`?dry_run=true`: the answer says what would be; no row, no audit entry, no snapshot stays."""

from __future__ import annotations

import pytest

from controlplane.audit.models import AuditEntry
from controlplane.namespaces.models import ApiKey, CacheNamespace
from controlplane.snapshots.models import PublishedSnapshot

IF_ANY = {"if-match": "*"}
CALLS = [
    ("post", "namespaces", {"tenant": "acme", "slug": "more"}, 201),
    ("patch", "namespaces/acme/support", {"name": "Other"}, 200),
    ("post", "namespaces/acme/support/status", {"status": "revoked"}, 200),
    ("post", "namespaces/acme/support/rotate", {}, 200),
    ("post", "keys", {"namespace": "acme/support", "name": "k"}, 201),
    ("put", "watermark-policies/global", {"low": 0.4, "high": 0.5}, 200),
    ("delete", "watermark-policies/namespace:acme/support", {}, 204),
    ("post", "tenants", {"id": "fresh", "name": "Fresh"}, 201),
]


def _state() -> list[object]:
    return [
        list(model.objects.order_by("pk").values()) for model in (AuditEntry, CacheNamespace, ApiKey, PublishedSnapshot)
    ]


@pytest.mark.parametrize(("method", "path", "body", "status"), CALLS)
def test_it_answers_as_if_done_and_leaves_nothing(
    olga, method: str, path: str, body: object, status: int, django_capture_on_commit_callbacks
) -> None:
    before = _state()
    with django_capture_on_commit_callbacks() as after_commit:
        tried = getattr(olga, method)(f"/api/v1/{path}?dry_run=true", body, format="json", headers=IF_ANY)
    assert (tried.status_code, tried["tidemark-dry-run"]) == (status, "true")
    assert _state() == before and after_commit == []
    done = getattr(olga, method)(f"/api/v1/{path}", body, format="json", headers=IF_ANY)
    assert done.status_code == status and "tidemark-dry-run" not in done
    assert _state() != before


def test_it_finds_what_the_change_itself_would_find(alice) -> None:
    body = {"tenant": "acme", "slug": "support"}
    answer = alice.post("/api/v1/namespaces?dry_run=true", body, format="json")
    assert (answer.status_code, answer.json()["code"]) == (409, "taken")


def test_it_takes_no_idempotency_key(alice) -> None:
    body, headers = {"tenant": "acme", "slug": "more"}, {"idempotency-key": "k"}
    assert alice.post("/api/v1/namespaces?dry_run=true", body, format="json", headers=headers).status_code == 201
    done = alice.post("/api/v1/namespaces", body, format="json", headers=headers)
    assert done.status_code == 201 and "idempotent-replayed" not in done


@pytest.mark.parametrize("query", ["dryrun=true", "dry_run=1", "dry_run=True", "dry_run=", "x=1&dry_run=true"])
def test_a_mistyped_parameter_changes_nothing(alice, query: str) -> None:
    answer = alice.post(f"/api/v1/namespaces?{query}", {"tenant": "acme", "slug": "more"}, format="json")
    assert answer.status_code == 422
    assert not CacheNamespace.objects.filter(slug="more").exists()


def test_a_call_that_acts_outside_cannot_be_tried(olga) -> None:
    answer = olga.post("/api/v1/workers/llama/w1/test?dry_run=true")
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "dry_run")


def test_who_may_not_do_it_may_not_try_it(bob) -> None:
    answer = bob.patch("/api/v1/namespaces/acme/support?dry_run=true", {"name": "x"}, format="json", headers=IF_ANY)
    assert answer.status_code == 403

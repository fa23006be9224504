"""Revocations, rotation and scopes over REST."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from controlplane.namespaces.key_services import issue_key
from controlplane.namespaces.models import ApiKey
from controlplane.revocations.models import Revocation, RouterAck
from controlplane.snapshots.compiler import compile_snapshot
from controlplane.tenants.roles import Role
from tests.control.conftest import (  # noqa: F401 - fixtures
    ACTOR,
    alice,
    bob,
    no_valkey,
    pool,
    router_client,
    support,
)
from tests.identity.world import caller

NAMESPACE = "acme/support"


@pytest.fixture
def key_id(support) -> str:  # noqa: F811
    return issue_key(actor=ACTOR, namespace=NAMESPACE, name="k").key.key_id


@pytest.mark.parametrize("kind", ["key", "namespace", "tenant", "model"])
def test_it_revokes_and_shows_how_far_it_came(alice, key_id, pool, kind: str) -> None:  # noqa: F811
    subject = {"key": key_id, "namespace": NAMESPACE, "tenant": "acme", "model": "llama:m"}[kind]
    body = {"kind": kind, "subject": subject, "reason": "leaked"}
    made = alice.post("/api/v1/revocations", body, format="json")
    assert made.status_code == 201
    row = Revocation.objects.get()
    RouterAck.objects.create(
        revocation=row, router_id="r1", seen_at=row.created_at, way="direct",
        acked_at=row.created_at + timedelta(milliseconds=40),
    )  # fmt: skip
    Revocation.objects.update(announced_at=row.created_at)
    shown = alice.get(f"/api/v1/revocations/{made.json()['epoch']}").json()
    assert (shown["kind"], shown["subject"], shown["state"], shown["ms"]) == (kind, subject, "effective", 40.0)
    assert shown["effect"] == "unreachable now; resident until evicted"
    [router] = shown["routers"]
    assert (router["router"], router["state"], router["ms"], router["way"]) == ("r1", "acknowledged", 40.0, "direct")
    listed = alice.get("/api/v1/revocations", {"kind": kind}).json()["items"]
    assert [item["epoch"] for item in listed] == [row.epoch]
    assert alice.get("/api/v1/revocations", {"tenant": "nobody"}).json()["items"] == []


def test_what_is_revoked_already_is_answered_with_its_revocation(alice, key_id) -> None:  # noqa: F811
    body = {"kind": "key", "subject": key_id}
    first, second = (alice.post("/api/v1/revocations", body, format="json").json() for _ in range(2))
    assert first["epoch"] == second["epoch"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"kind": "key", "subject": "nobody000000"}, 404),
        ({"kind": "namespace", "subject": "acme/none"}, 404),
        ({"kind": "tenant", "subject": "none"}, 404),
        ({"kind": "model", "subject": "llama:none"}, 404),
        ({"kind": "model", "subject": "none"}, 404),
        ({"kind": "worker", "subject": "llama/w1"}, 422),
        ({"kind": "key", "subject": "a\u0000b"}, 422),
        ({"kind": "key", "subject": "x" * 300}, 422),
        ({"kind": "key"}, 422),
    ],
)
def test_it_refuses_what_it_cannot_revoke(alice, key_id, pool, body: dict, status: int) -> None:  # noqa: F811
    assert alice.post("/api/v1/revocations", body, format="json").status_code == status
    assert not Revocation.objects.exists()


def test_a_tenants_own_people_see_their_revocations_only(alice, key_id) -> None:  # noqa: F811
    alice.post("/api/v1/revocations", {"kind": "key", "subject": key_id}, format="json")
    epoch = Revocation.objects.get().epoch
    from controlplane.tenants.services import create_tenant

    create_tenant(actor=ACTOR, slug="globex", name="Globex")
    theirs, others = (caller(Role.TENANT_ADMIN, tenant=tenant) for tenant in ("acme", "globex"))
    assert len(theirs.get("/api/v1/revocations").json()["items"]) == 1
    assert others.get("/api/v1/revocations").json()["items"] == []
    assert theirs.get(f"/api/v1/revocations/{epoch}").status_code == 200
    hidden, absent = (others.get(f"/api/v1/revocations/{number}") for number in (epoch, epoch + 1))
    assert hidden.status_code == absent.status_code == 404
    assert {**hidden.json(), "request_id": ""} == {**absent.json(), "request_id": ""}


def test_rotation_gives_a_successor_and_lets_the_key_end_after_the_overlap(alice, support) -> None:  # noqa: F811
    issued = issue_key(actor=ACTOR, namespace=NAMESPACE, name="k", scopes=["inference", "explain"])
    old = issued.key.key_id
    answer = alice.post(f"/api/v1/keys/{old}/rotate", {"overlap_s": 3600, "reason": "yearly"}, format="json")
    assert answer.status_code == 201
    fresh = answer.json()
    assert fresh["key"].startswith(f"tm_{fresh['id']}_") and fresh["id"] != old
    assert (fresh["name"], fresh["scopes"], fresh["expires_at"]) == ("k", ["explain", "inference"], None)
    ends_at = ApiKey.objects.get(key_id=old).expires_at
    assert ends_at is not None and abs((ends_at - timezone.now()).total_seconds() - 3600) < 60
    grants = compile_snapshot().keys
    assert grants[old].status == grants[fresh["id"]].status == "active"
    assert grants[old].expires_at == pytest.approx(ends_at.timestamp())


def test_rotation_never_lengthens_a_life(alice, support) -> None:  # noqa: F811
    soon = timezone.now() + timedelta(minutes=1)
    issued = issue_key(actor=ACTOR, namespace=NAMESPACE, name="k", expires_at=soon)
    fresh = alice.post(f"/api/v1/keys/{issued.key.key_id}/rotate", {"overlap_s": 3600}, format="json").json()
    assert ApiKey.objects.get(key_id=issued.key.key_id).expires_at == soon
    assert datetime.fromisoformat(fresh["expires_at"]).astimezone(UTC) == soon


def test_a_revoked_or_expired_key_has_no_successor(alice, key_id) -> None:  # noqa: F811
    alice.post(f"/api/v1/keys/{key_id}/revoke", {}, format="json")
    assert alice.post(f"/api/v1/keys/{key_id}/rotate", {}, format="json").status_code == 409
    ApiKey.objects.update(status="active", revoked_at=None, expires_at=timezone.now() - timedelta(seconds=1))
    assert alice.post(f"/api/v1/keys/{key_id}/rotate", {}, format="json").status_code == 409
    for overlap in (-1, 1e9, "x"):
        assert alice.post(f"/api/v1/keys/{key_id}/rotate", {"overlap_s": overlap}, format="json").status_code == 422


@pytest.mark.parametrize(
    ("scopes", "status"),
    [(["inference"], 201), (["explain", "inference"], 201), (["explain"], 422), ([], 422), (["all"], 422)],
)
def test_scopes_are_a_closed_set_with_inference_in_it(alice, support, scopes: list, status: int) -> None:  # noqa: F811
    body = {"namespace": NAMESPACE, "name": "k", "scopes": scopes}
    answer = alice.post("/api/v1/keys", body, format="json")
    assert answer.status_code == status
    if status == 201:
        assert sorted(compile_snapshot().keys[answer.json()["id"]].scopes) == sorted(scopes)


def test_a_tenant_cannot_give_itself_a_key_that_explains(support) -> None:  # noqa: F811
    """The header names workers: it is for operators (S6)."""
    theirs = caller(Role.TENANT_ADMIN, tenant="acme")
    body = {"namespace": NAMESPACE, "name": "k"}
    assert theirs.post("/api/v1/keys", body, format="json").status_code == 201
    assert theirs.post("/api/v1/keys", {**body, "scopes": ["inference", "explain"]}, format="json").status_code == 403
    issued = issue_key(actor=ACTOR, namespace=NAMESPACE, name="k", scopes=["inference", "explain"])
    assert theirs.post(f"/api/v1/keys/{issued.key.key_id}/rotate", {}, format="json").status_code == 403


def test_routers_show_version_epoch_digest_and_lag(bob, router_client) -> None:  # noqa: F811
    from controlplane.snapshots.services import publish_pending

    current = publish_pending()
    hello = {"router": "r1", "boot": "b", "at": 1.0, "snapshot_version": current.version, "epoch": 1}
    router_client.post("/api/v1/snapshots/poll", {**hello, "digest": current.digest}, format="json")
    router_client.post("/api/v1/snapshots/poll", {**hello, "router": "r2", "snapshot_version": 0}, format="json")
    shown = bob.get("/api/v1/routers").json()
    assert shown["digest"] == current.digest
    first, second = shown["routers"]
    assert (first["version"], first["digest"], first["behind_s"]) == (current.version, current.digest, None)
    assert second["behind_s"] >= 0

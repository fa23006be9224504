"""Revoking on the dashboard: what it takes away is said first, the name is typed, and each router's word is shown."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.fleet.models import PoolModel
from controlplane.namespaces.models import ApiKey, CacheNamespace
from controlplane.revocations.models import Revocation, RouterAck
from controlplane.telemetry.ingest import apply_entries
from controlplane.tenants.models import Tenant
from dashboard import fragments
from dashboard.blast import blast_of
from router.contract.telemetry import RouterState, Shipment, encode_shipment
from tests.dashboard.people import html_of, member

pytestmark = pytest.mark.django_db

SUBJECTS = {
    "key": ("acmesupp", "acmesupp"),
    "namespace": ("acme/support", "acme/support"),
    "tenant": ("acme", "acme"),
    "model": ("demo:sim-llama", "demo:sim-llama"),
}


def _say(now: datetime, *, router: str = "router-9", ago_s: float = 1.0, **state: dict[str, int]) -> None:
    """What a router says of itself."""
    told = RouterState(snapshot_version=12, snapshot_age_s=1.0, inflight=7, index_blocks=900, index_bytes=1, **state)  # type: ignore[arg-type]
    at = now.timestamp() - ago_s
    assert not apply_entries(
        [encode_shipment(Shipment(source=router, boot="b", seq=1, at=at, router=told))], now=now
    ).refused


def test_the_cost_of_a_tenant_is_its_keys_traffic_running_requests_and_blocks(short_fleet: None, now: datetime) -> None:
    _say(now, inflight_by_namespace={"acme/support": 3, "acme/search": 2, "globex/agents": 9},
         index_blocks_by_tenant={"acme": 640, "globex": 100})  # fmt: skip
    blast = blast_of("tenant", "acme", now=now)
    assert blast is not None
    assert (blast.keys, blast.running, blast.blocks) == (2, 5, 640)
    assert blast.namespaces == ["acme/search", "acme/support"] and blast.tenants == ["acme"]
    assert blast.requests_per_min is not None and 0 < blast.requests_per_min < 10
    assert blast.serves_when_stale, "its namespaces serve when their policy is stale"
    alone = blast_of("namespace", "acme/support", now=now)
    assert alone is not None and (alone.keys, alone.running) == (1, 3)
    assert alone.requests_per_min is not None and alone.requests_per_min < blast.requests_per_min


def test_what_no_router_says_is_unknown_and_not_nothing(short_fleet: None, now: datetime) -> None:
    later = now + timedelta(minutes=5)
    blast = blast_of("tenant", "acme", now=later)
    assert blast is not None and blast.running is None and blast.blocks is None
    assert blast_of("tenant", "nobody", now=now) is None
    idle = Tenant.objects.create(slug="idle", name="Idle")
    CacheNamespace.objects.create(tenant=idle, slug="n", on_stale="deny")
    quiet = blast_of("tenant", "idle", now=now)
    assert quiet is not None and quiet.requests_per_min == 0 and not quiet.serves_when_stale


def test_a_model_names_whom_it_touches(short_fleet: None, now: datetime) -> None:
    blast = blast_of("model", "demo:sim-llama", now=now)
    assert blast is not None and blast.tenants == ["acme", "globex", "initech"]
    assert blast.blocks and "hold" in blast.blocks_of


@pytest.mark.parametrize("kind", SUBJECTS)
def test_nothing_is_revoked_until_the_name_is_typed(admin: Client, short_fleet: None, kind: str) -> None:
    subject, typed = SUBJECTS[kind]
    path = f"/revoke/{kind}/{subject}/"
    body = html_of(admin, path)
    assert f"Type <code>{typed}</code> to confirm" in body and "final" in body
    for wrong in ("", typed.upper(), typed[:-1]):
        answer = admin.post(path, {"typed": wrong, "reason": "leaked"})
        assert answer.status_code == 422 and b"leaked" in answer.content
    assert not Revocation.objects.exists()
    answer = admin.post(path, {"typed": typed, "reason": "leaked"})
    row = Revocation.objects.get()
    assert answer["location"].startswith(f"/revocations/{row.epoch}/")
    assert (row.kind, row.subject, row.reason, row.actor) == (kind, subject, "leaked", "user:ada")


def test_what_is_revoked_already_is_not_revoked_again(admin: Client, short_fleet: None) -> None:
    for _ in range(2):
        admin.post("/revoke/namespace/acme/support/", {"typed": "acme/support"})
    assert Revocation.objects.count() == 1
    body = html_of(admin, "/revoke/namespace/acme/support/")
    assert "It is revoked already." in body and 'name="typed"' not in body
    again = [admin.post("/revoke/model/demo:sim-llama/", {"typed": "demo:sim-llama"}) for _ in range(2)]
    assert [answer.status_code for answer in again] == [302, 302], "the next revision of a model ends too"
    assert PoolModel.objects.get(name="sim-llama").generation == 3


def test_each_routers_word_is_shown_with_its_time(admin: Client, short_fleet: None, now: datetime) -> None:
    at = timezone.now() - timedelta(seconds=20)
    row = Revocation.objects.create(
        epoch=7, kind="namespace", subject="acme/support", tenant="acme", audit_id=1, created_at=at, announced_at=at,
        actor="user:ada", reason="leaked",
    )  # fmt: skip
    first = RouterAck.objects.create(
        revocation=row, router_id="r1", seen_at=at, acked_at=at + timedelta(milliseconds=38), way="direct"
    )
    waiting = RouterAck.objects.create(revocation=row, router_id="r2", seen_at=timezone.now())
    body = html_of(admin, "/revocations/7/")
    assert "1 of 2 routers refuse it" in body and "38 ms" in body and "answered at once" in body
    assert "Waiting for it" in body and "unreachable now; resident until evicted" in body
    waiting.acked_at, waiting.way = at + timedelta(milliseconds=900), "poll"
    waiting.save()
    fragments.forget()
    body = html_of(admin, "/revocations/7/")
    assert "every router refuses it, the last after 900 ms" in body and first.router_id in body


def test_a_tenants_people_see_their_own_revocations_alone(alice: Client, now: datetime) -> None:
    for epoch, tenant in ((7, "acme"), (8, "globex"), (9, "")):
        Revocation.objects.create(
            epoch=epoch, kind="key", subject=f"key{epoch}", tenant=tenant, audit_id=1, created_at=now, announced_at=now
        )
    assert "key7" in html_of(alice, "/revocations/7/?tenant=acme")
    for path in ("/revocations/8/", "/revocations/9/", "/revocations/10/"):
        assert alice.get(path).status_code == 404
    foreign = alice.get("/fragments/revocation/?item=8&tenant=acme").content.decode()
    assert "key8" not in foreign and "There is no such revocation." in foreign
    assert alice.get("/fragments/revocation/?item=8&tenant=globex").status_code == 404


def test_a_tenants_administrator_revokes_keys_and_namespaces_and_not_the_tenant(alice: Client) -> None:
    assert alice.post("/revoke/key/acmesupp/", {"typed": "acmesupp"}).status_code == 302
    assert ApiKey.objects.get(key_id="acmesupp").status == "revoked"
    assert alice.get("/revoke/tenant/acme/").status_code == 403
    assert alice.get("/revoke/model/demo:sim-llama/").status_code == 404
    bob = member("bob", "viewer", "acme")
    assert bob.get("/revoke/key/acmesear/").status_code == 403

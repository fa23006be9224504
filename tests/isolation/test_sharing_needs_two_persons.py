"""Sharing a cache (S1.6, S3.11): proposed by one person, approved by another, ended by one; what routers are told."""

from __future__ import annotations

import pytest
from django.conf import settings
from rest_framework.test import APIClient

from controlplane.approvals.services import approve
from controlplane.audit.models import AuditEntry
from controlplane.errors import Conflict, Invalid, NotFound
from controlplane.namespaces.models import CacheNamespace
from controlplane.namespaces.services import create_namespace, rotate_generation, set_namespace_status
from controlplane.namespaces.sharing_services import create_group, dissolve_group, make_private, propose_sharing
from controlplane.snapshots.compiler import compile_snapshot
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Role
from controlplane.tenants.services import create_tenant
from router.contract.snapshot import PoolPolicy
from router.core.policy_book import PolicyBook
from tests.isolation.test_findings_api import client_of

ALICE, CAROL = "user:alice", "user:carol"


@pytest.fixture(autouse=True)
def two_tenants(db) -> None:
    for tenant in ("acme", "globex"):
        create_tenant(actor=ALICE, slug=tenant, name=tenant.title())
        for slug in ("support", "search"):
            create_namespace(actor=ALICE, tenant=tenant, slug=slug)
    create_group(actor=ALICE, slug="alliance", name="Alliance")


def share(namespace: str, **change: str) -> None:
    row = propose_sharing(actor=ALICE, namespace=namespace, reason="one corpus", **change)
    approve(row.pk, actor=CAROL, decision="agreed")


def salts() -> dict[str, str]:
    """Namespace → the salt that a router makes from the compiled snapshot."""
    import msgspec

    compiled = compile_snapshot()
    compiled = msgspec.structs.replace(compiled, pools={"p": PoolPolicy(models=("m",))})
    book = PolicyBook(fleet_key=settings.FLEET_KEY, verified_keys_max=10, stale_deny_after_s=60)
    book.apply(compiled)
    return {namespace: book.grant_of(namespace, model="m").salt for namespace in compiled.namespaces}


def test_nothing_is_shared_before_another_person_approves() -> None:
    row = propose_sharing(
        actor=ALICE, namespace="acme/support", isolation="project", project="help", reason="one corpus"
    )
    assert CacheNamespace.objects.get(slug="support", tenant__slug="acme").isolation == "private"
    assert (row.kind, row.subject, row.tenant) == ("namespace.sharing", "acme/support", "acme")
    assert len(set(salts().values())) == 4


def test_namespaces_of_one_tenant_share_in_a_project() -> None:
    for namespace in ("acme/support", "acme/search", "globex/support"):
        share(namespace, isolation="project", project="help")
    found = salts()
    assert found["acme/support"] == found["acme/search"]
    assert len(set(found.values())) == 3, "another tenant's project of the same name is another one"


def test_tenants_share_in_a_trust_group_of_approved_members_only() -> None:
    for namespace in ("acme/support", "globex/support"):
        share(namespace, isolation="trust_group", trust_group="alliance")
    found = salts()
    assert found["acme/support"] == found["globex/support"]
    assert len(set(found.values())) == 3


def test_leaving_holds_at_once_and_makes_the_others_cold() -> None:
    for namespace in ("acme/support", "globex/support"):
        share(namespace, isolation="trust_group", trust_group="alliance")
    before = salts()
    make_private(actor=ALICE, namespace="globex/support", reason="incident")
    after = salts()
    assert len({before["acme/support"], after["acme/support"], after["globex/support"]}) == 3
    entry = AuditEntry.objects.get(action="namespace.private")
    assert (entry.before["trust_group"], entry.after["trust_group"], entry.reason) == ("alliance", "", "incident")
    assert entry.affects_routing


@pytest.mark.parametrize("event", ["revoke", "suspend tenant", "rotate"])
def test_what_a_member_loses_the_others_cannot_hit_either(event: str) -> None:
    for namespace in ("acme/support", "globex/support"):
        share(namespace, isolation="trust_group", trust_group="alliance")
    before = salts()["acme/support"]
    if event == "revoke":
        set_namespace_status(actor=ALICE, namespace="globex/support", status="revoked")
    elif event == "suspend tenant":
        Tenant.objects.filter(slug="globex").update(status="suspended")
    else:
        rotate_generation(actor=ALICE, namespace="globex/support")
    assert salts()["acme/support"] != before


def test_a_dissolved_group_makes_all_private_and_takes_nobody_in() -> None:
    for namespace in ("acme/support", "globex/support"):
        share(namespace, isolation="trust_group", trust_group="alliance")
    dissolve_group("alliance", actor=ALICE, reason="the contract has ended")
    assert len(set(salts().values())) == 4
    with pytest.raises(Invalid, match="dissolved"):
        propose_sharing(
            actor=ALICE, namespace="acme/support", isolation="trust_group", trust_group="alliance", reason="again"
        )
    with pytest.raises(NotFound):
        dissolve_group("none", actor=ALICE)


def test_a_group_dissolved_between_proposal_and_approval_is_not_joined() -> None:
    row = propose_sharing(
        actor=ALICE, namespace="acme/support", isolation="trust_group", trust_group="alliance", reason="one corpus"
    )
    dissolve_group("alliance", actor=ALICE)
    with pytest.raises(Invalid):
        approve(row.pk, actor=CAROL)
    assert CacheNamespace.objects.get(slug="support", tenant__slug="acme").isolation == "private"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"isolation": "private"}, "isolation"),
        ({"isolation": "everything"}, "isolation"),
        ({"isolation": "project"}, "project"),
        ({"isolation": "project", "project": "Not A Slug"}, "project"),
        ({"isolation": "project", "project": "a", "trust_group": "alliance"}, "trust_group"),
        ({"isolation": "trust_group"}, "trust_group"),
        ({"isolation": "trust_group", "trust_group": "none"}, "trust_group"),
        ({"isolation": "trust_group", "trust_group": "alliance", "project": "a"}, "project"),
    ],
)
def test_what_could_never_be_applied_is_refused_at_once(change: dict[str, str], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        propose_sharing(actor=ALICE, namespace="acme/support", reason="x", **change)
    assert refused.value.errors[0]["field"] == field


def test_the_same_again_is_refused_and_a_revoked_namespace_shares_nothing() -> None:
    share("acme/support", isolation="project", project="help")
    with pytest.raises(Conflict):
        propose_sharing(actor=ALICE, namespace="acme/support", isolation="project", project="help", reason="x")
    set_namespace_status(actor=ALICE, namespace="acme/search", status="revoked")
    with pytest.raises(Conflict):
        propose_sharing(actor=ALICE, namespace="acme/search", isolation="project", project="help", reason="x")


class TestOverRest:
    BODY = {"isolation": "trust_group", "trust_group": "alliance", "reason": "one corpus"}

    @pytest.fixture
    def sam(self) -> APIClient:
        return client_of("sam", Role.SECURITY)

    @pytest.fixture
    def ada(self) -> APIClient:
        return client_of("ada", Role.ADMIN)

    def test_it_is_proposed_by_one_and_approved_by_another(self, sam: APIClient, ada: APIClient) -> None:
        proposed = sam.post("/api/v1/namespaces/acme/support/sharing", self.BODY, format="json")
        assert proposed.status_code == 202, proposed.content
        address = f"/api/v1/change-requests/{proposed.json()['id']}/approve"
        assert sam.post(address, {}, format="json").status_code == 403
        assert ada.post(address, {}, format="json").status_code == 200
        shown = sam.get("/api/v1/namespaces/acme/support").json()
        assert (shown["isolation"], shown["trust_group"]) == ("trust_group", "alliance")
        assert sam.get("/api/v1/trust-groups/alliance").json()["members"] == ["acme/support"]
        listed = sam.get("/api/v1/namespaces?trust_group=alliance").json()["items"]
        assert [item["id"] for item in listed] == ["acme/support"]

    def test_private_holds_at_once(self, sam: APIClient) -> None:
        share("acme/support", isolation="project", project="help")
        answer = sam.post(
            "/api/v1/namespaces/acme/support/sharing", {"isolation": "private", "reason": "incident"}, format="json"
        )
        assert (answer.status_code, answer.json()["isolation"]) == (200, "private")

    def test_groups_are_made_listed_and_dissolved(self, sam: APIClient) -> None:
        assert sam.post("/api/v1/trust-groups", {"id": "union"}, format="json").status_code == 201
        assert sam.post("/api/v1/trust-groups", {"id": "union"}, format="json").status_code == 409
        assert sam.post("/api/v1/trust-groups/union/dissolve", {}, format="json").json()["dissolved_at"]
        listed = sam.get("/api/v1/trust-groups?dissolved=false").json()["items"]
        assert [item["id"] for item in listed] == ["alliance"]

    def test_a_tenants_own_administrator_cannot_share(self) -> None:
        tim = client_of("tim", Role.TENANT_ADMIN, "acme")
        assert tim.post("/api/v1/namespaces/acme/support/sharing", self.BODY, format="json").status_code == 403
        assert tim.post("/api/v1/namespaces/globex/support/sharing", self.BODY, format="json").status_code == 404

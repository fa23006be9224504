"""The allow-list of public texts (S3.11): two persons put a template's static text on it, one takes it off."""

from __future__ import annotations

import pytest
from django.conf import settings

from controlplane.approvals.services import approve
from controlplane.errors import Conflict, Invalid, NotFound
from controlplane.namespaces.services import create_namespace
from controlplane.namespaces.sharing_services import propose_sharing
from controlplane.prompts.public_services import propose_public, static_text, withdraw_public
from controlplane.prompts.services import create_template, draft_version, publish_version, retire_version
from controlplane.snapshots.compiler import compile_snapshot
from controlplane.tenants.roles import Role
from controlplane.tenants.services import create_tenant
from router.contract.public import public_digest, public_key
from tests.isolation.test_findings_api import client_of

ALICE, CAROL = "user:alice", "user:carol"
RULES, HOURS = "Answer for the library.\nBe brief and kind to everybody.", "Open from nine to five, closed on Mondays."
STATIC = [{"kind": "static", "name": "rules", "text": RULES}, {"kind": "static", "name": "hours", "text": HOURS}]
DYNAMIC = {"kind": "dynamic", "name": "question", "text": "Question: {question}"}


@pytest.fixture(autouse=True)
def library(db) -> None:
    create_tenant(actor=ALICE, slug="acme", name="Acme")
    create_namespace(actor=ALICE, tenant="acme", slug="desk")
    share = propose_sharing(actor=ALICE, namespace="acme/desk", isolation="shared_public", reason="public texts")
    approve(share.pk, actor=CAROL)
    create_template(actor=ALICE, tenant="acme", slug="library")


def published(*segments: dict[str, str]) -> int:
    row = draft_version(actor=ALICE, template="acme/library", segments=list(segments))
    lints = ("static_unaligned", "static_short", "placeholder_in_static", "value_in_static")
    publish_version(actor=ALICE, template="acme/library", version=row.version, accept=lints, reason="a test")
    return row.version


def allow(version: int) -> None:
    row = propose_public(actor=ALICE, template="acme/library", version=version, reason="on our web site anyway")
    approve(row.pk, actor=CAROL)


def expected(text: str) -> set[str]:
    key = public_key(settings.FLEET_KEY)
    return {public_digest(key, role=role, text=text.encode()) for role in ("system", "user")}


def test_routers_are_told_digests_of_the_static_text_once_two_persons_agree() -> None:
    version = published(*STATIC, DYNAMIC)
    propose = propose_public(actor=ALICE, template="acme/library", version=version, reason="public")
    assert compile_snapshot().public_texts == ()
    approve(propose.pk, actor=CAROL)
    compiled = compile_snapshot()
    assert set(compiled.public_texts) == expected(f"{RULES}\n{HOURS}")
    assert compiled.namespaces["acme/desk"].shares_public and RULES not in str(compiled)


def test_withdrawn_retired_and_unused_texts_are_not_told() -> None:
    version = published(*STATIC)
    allow(version)
    assert len(compile_snapshot().public_texts) == 2
    withdraw_public(actor=ALICE, template="acme/library", version=version, reason="moved")
    assert compile_snapshot().public_texts == ()
    allow(version)
    retire_version(actor=ALICE, template="acme/library", version=version)
    assert compile_snapshot().public_texts == ()


def test_escaped_braces_are_told_as_they_are_rendered() -> None:
    assert static_text([{"kind": "static", "name": "a", "text": "write {{name}}"}]) == "write {name}"


def test_a_static_text_with_a_placeholder_is_refused() -> None:
    version = published({"kind": "static", "name": "rules", "text": "Serve {tenant_name} and its customers well."})
    with pytest.raises(Invalid, match="placeholders"):
        propose_public(actor=ALICE, template="acme/library", version=version, reason="x")


def test_only_published_versions_with_static_text_are_allowed() -> None:
    draft = draft_version(actor=ALICE, template="acme/library", segments=list(STATIC))
    with pytest.raises(Conflict, match="draft"):
        propose_public(actor=ALICE, template="acme/library", version=draft.version, reason="x")
    with pytest.raises(NotFound):
        propose_public(actor=ALICE, template="acme/library", version=99, reason="x")


def test_over_rest() -> None:
    version = published(*STATIC)
    sam, ada = client_of("sam", Role.SECURITY), client_of("ada", Role.ADMIN)
    address = f"/api/v1/templates/acme/library/versions/{version}"
    proposed = sam.post(f"{address}/public", {"public": True, "reason": "ours"}, format="json")
    assert proposed.status_code == 202, proposed.content
    assert ada.post(f"/api/v1/change-requests/{proposed.json()['id']}/approve", {}, format="json").status_code == 200
    assert sam.get(address).json()["is_public"] is True
    answer = sam.post(f"{address}/public", {"public": False, "reason": "moved"}, format="json")
    assert (answer.status_code, answer.json()["is_public"]) == (200, False)
    tim = client_of("tim", Role.TENANT_ADMIN, "acme")
    assert tim.post(f"{address}/public", {"public": True, "reason": "x"}, format="json").status_code == 403

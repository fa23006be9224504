"""The admin shows everything and changes nothing that has a service."""

from __future__ import annotations

import pytest
from django.contrib import admin
from django.test import Client

from controlplane.audit.admin import ReadOnlyAdmin
from controlplane.namespaces.key_services import issue_key
from controlplane.policies.services import set_watermark
from controlplane.snapshots.services import publish_pending
from controlplane.tenants.models import User
from tests.control.conftest import ACTOR

PAGES = {
    "audit/auditentry", "tenants/tenant", "namespaces/cachenamespace", "namespaces/apikey", "prompts/prompttemplate",
    "prompts/prompttemplateversion", "policies/watermarkpolicy", "snapshots/publishedsnapshot",
    "snapshots/routerstatus",
}  # fmt: skip


@pytest.fixture
def root(db) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root", password="x"))
    return client


def test_every_page_of_the_core_is_read_only() -> None:
    registered = {model._meta.label_lower.replace(".", "/"): page for model, page in admin.site._registry.items()}
    assert registered.keys() >= PAGES
    assert all(isinstance(registered[name], ReadOnlyAdmin) for name in PAGES)


@pytest.mark.parametrize("page", sorted(PAGES))
def test_a_list_is_shown_and_searched(root, support, page: str) -> None:
    issue_key(actor=ACTOR, namespace="acme/support", name="k")
    publish_pending()
    assert root.get(f"/admin/{page}/?q=acme").status_code == 200
    assert root.get(f"/admin/{page}/add/").status_code == 403


def test_a_row_is_shown_without_its_secrets_and_cannot_be_posted(root, support) -> None:
    key = issue_key(actor=ACTOR, namespace="acme/support", name="k").key
    snapshot = publish_pending()
    for page, hidden in (
        (f"namespaces/apikey/{key.pk}", key.secret_hash),
        (f"namespaces/cachenamespace/{support.pk}", support.generation_nonce),
        (f"snapshots/publishedsnapshot/{snapshot.pk}", key.secret_hash),
    ):
        shown = root.get(f"/admin/{page}/change/")
        assert shown.status_code == 200 and hidden not in shown.content.decode()
        assert root.post(f"/admin/{page}/change/", {}).status_code == 403
        assert root.post(f"/admin/{page}/delete/", {"post": "yes"}).status_code == 403


def test_an_audit_entry_cannot_be_deleted_here(root, db) -> None:
    set_watermark(actor=ACTOR, scope="global", low=0.5, high=0.6)
    assert root.post("/admin/audit/auditentry/1/delete/", {"post": "yes"}).status_code == 403

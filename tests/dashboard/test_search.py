"""The palette finds what the caller may see, by part of its name, and nothing else."""

from __future__ import annotations

from datetime import datetime

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from controlplane.prompts.models import PromptTemplate, PromptTemplateVersion
from controlplane.telemetry.models import DecisionRecord
from controlplane.tenants.models import Membership, Tenant, User
from tests.dashboard import story

QUERIES_MAX = 12


@pytest.fixture
def alice(fleet: None) -> Client:
    """Administers acme alone."""
    user = User.objects.create_user(username="alice", password=story.PASSWORD)
    Membership.objects.create(user=user, tenant=Tenant.objects.get(slug="acme"), role=User.Role.TENANT_ADMIN)
    client = Client()
    client.force_login(user)
    return client


def _found(client: Client, text: str) -> str:
    answer = client.get("/search/", {"text": text, "list": "1", "tz": "UTC"})
    assert answer.status_code == 200
    return str(answer.content.decode())


def test_it_finds_each_kind_by_part_of_its_name(operator: Client, fleet: None, now: datetime) -> None:
    template = PromptTemplate.objects.create(tenant=Tenant.objects.get(slug="acme"), slug="greeting")
    PromptTemplateVersion.objects.create(template=template, version=3)
    for text, address in (
        ("polic", "/policies/?"), ("acm", "/tenants/acme/?"), ("acme/sup", "/namespaces/acme/support/?"),
        ("w2", "/workers/demo/w2/?"), ("demo", "/?pool=demo&amp;"), ("greet", "/templates/acme/greeting/3/?"),
        ("req-0000000", "/requests/req-0000000c/?"),
    ):  # fmt: skip
        assert address in _found(operator, text), text


def test_nobody_finds_what_is_not_theirs(alice: Client, now: datetime) -> None:
    for text in ("globex", "initech", "w2", "demo", "globex/agents", "polic"):
        assert "Nothing found" in _found(alice, text), text
    assert "acme/support" in _found(alice, "supp")
    for kind, text, names in (
        ("tenant", "", ["acme"]), ("ns", "", ["acme/search", "acme/support"]), ("worker", "", []), ("pool", "d", []),
        ("model", "sim", []),
    ):  # fmt: skip
        assert alice.get(f"/search/names/{kind}/", {"text": text}).json() == {"names": names}, kind


def test_a_foreign_request_is_as_absent_as_one_that_never_was(alice: Client, operator: Client, now: datetime) -> None:
    DecisionRecord.objects.update(tenant="globex", namespace="globex/agents")
    assert "req-0000000c" in _found(operator, "req-0000")
    assert "Nothing found" in _found(alice, "req-0000")


def test_it_completes_the_fields_of_the_scope(operator: Client, fleet: None) -> None:
    for kind, text, names in (
        ("tenant", "glo", ["globex"]), ("ns", "acme/s", ["acme/search", "acme/support"]), ("worker", "w3", ["demo/w3"]),
        ("pool", "de", ["demo"]), ("model", "llama", [story.MODEL]), ("colour", "x", []),
    ):  # fmt: skip
        assert operator.get(f"/search/names/{kind}/", {"text": text}).json() == {"names": names}, kind


def test_it_works_without_a_script_and_within_the_budget(operator: Client, fleet: None) -> None:
    with CaptureQueriesContext(connection) as asked:
        page = operator.get("/search/", {"text": "acme"}).content.decode()
    assert "<h1>Search</h1>" in page and "acme/support" in page
    assert len(asked) <= QUERIES_MAX


@pytest.mark.parametrize("text", ["\x00", "%", "'; --", "/", "acme/", "a" * 5000, "\ud800".encode("utf-8", "replace")])
def test_it_takes_any_text(operator: Client, fleet: None, text: str) -> None:
    assert operator.get("/search/", {"text": text}).status_code == 200

"""The Audit page: search, what changed, the cursor, verification, export, and what a tenant's members see."""

from __future__ import annotations

import csv
import io
import json

import pytest
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext

from controlplane.audit.models import AuditEntry, AuditVerification
from controlplane.audit.services import record
from controlplane.tenants.models import Membership, Tenant
from controlplane.webhooks.tasks import check_audit
from dashboard.views import audit as views
from tests.dashboard import story

pytestmark = pytest.mark.django_db


def _record(action: str, object_type: str, object_id: str, **values) -> AuditEntry:
    given = {"actor": "user:ada", "before": None, "after": None, "affects_routing": False} | values
    with transaction.atomic():
        return record(action=action, object_type=object_type, object_id=object_id, **given)


@pytest.fixture
def log(db: None) -> None:
    for slug in ("acme", "globex"):
        Tenant.objects.create(slug=slug, name=slug.title())
        _record("tenant.create", "tenant", slug, after={"name": slug.title(), "budget": None})
    _record(
        "namespace.update", "namespace", "acme/support", before={"priority": 1, "status": "active"},
        after={"priority": 5, "status": "active"}, reason="busy season", request_id="req-1",
    )  # fmt: skip
    _record("worker.drain", "worker", "demo/w1", actor="user:olga", after={"state": "drain"})


def _rows(client: Client, query: str = "") -> str:
    answer = client.get(f"/audit/{query}")
    assert answer.status_code == 200
    return answer.content.decode().partition('id="entries"')[2]


def test_it_shows_what_changed_field_by_field(log: None, viewer: Client) -> None:
    html = _rows(viewer, "?action=namespace.update")
    assert "<del>1</del>" in html and "<ins>5</ins>" in html and "busy season" in html
    assert "<del>active</del>" not in html, "what stayed is not a change"


@pytest.mark.parametrize(
    ("query", "shown", "hidden"),
    [
        ("?actor=olga", "demo/w1", "acme/support"),
        ("?actor=user:ada", "acme/support", "demo/w1"),
        ("?action=tenant.", "globex", "demo/w1"),
        ("?object=acme", "acme/support", "demo/w1"),
        ("?request_id=req-1", "acme/support", "demo/w1"),
        ("?tenant=globex", "globex", "acme/support"),
        ("?from=-15m", "demo/w1", "no such"),
    ],
)
def test_it_is_searched(log: None, viewer: Client, query: str, shown: str, hidden: str) -> None:
    rows = _rows(viewer, query).partition("<tbody>")[2]
    assert shown in rows and hidden not in rows


def test_nothing_found_says_so(log: None, viewer: Client) -> None:
    assert "No entry is like that." in _rows(viewer, "?actor=nobody")
    assert "No entry" in _rows(viewer, "?from=2020-01-01T00:00:00Z&to=2020-01-02T00:00:00Z")


def test_the_cursor_leads_through_everything_once(log: None, viewer: Client, monkeypatch) -> None:
    monkeypatch.setattr(views, "PAGE_ROWS", 3)
    first = _rows(viewer)
    assert "before=2" in first and "Newest" not in first
    second = _rows(viewer, "?before=2")
    assert "Older" not in second and "Newest" in second and second.count("tenant.create") == 1


def test_it_is_verified_by_hand_and_by_the_schedule(log: None, viewer: Client) -> None:
    assert "unknown" in viewer.get("/audit/").content.decode()
    answer = viewer.post("/audit/verify/", follow=True).content.decode()
    assert "The log is whole: 4 entries" in answer
    row = AuditVerification.objects.get()
    assert (row.by, row.entries, row.bad_id, row.head_hash) == ("user:vera", 4, None, AuditEntry.objects.first().hash)
    check_audit()
    assert AuditVerification.objects.first().by == "system:schedule"


def test_an_altered_entry_is_named(log: None, viewer: Client) -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE audit_auditentry SET actor = 'user:mallory' WHERE id = 2")
    html = viewer.post("/audit/verify/", follow=True).content.decode()
    assert "Entry 2: entry 2 was altered." in html and "broken at entry 2" in html


def test_a_long_log_is_verified_in_the_background(log: None, viewer: Client, monkeypatch) -> None:
    monkeypatch.setattr(views, "VERIFIED_AT_ONCE_MAX", 3)
    asked = []
    monkeypatch.setattr(views.check_audit, "apply_async", lambda **options: asked.append(options))
    assert "being verified" in viewer.post("/audit/verify/", follow=True).content.decode()
    assert asked and not AuditVerification.objects.exists()


def test_what_is_found_can_be_taken_away(log: None, viewer: Client) -> None:
    _record("tenant.update", "tenant", "acme", reason="=cmd|' /C calc'!A0")
    table = b"".join(viewer.get("/audit/export.csv?object=acme").streaming_content).decode()
    rows = list(csv.DictReader(io.StringIO(table)))
    assert [row["action"] for row in rows] == ["tenant.update", "namespace.update", "tenant.create"]
    assert rows[0]["reason"].startswith("'=") and json.loads(rows[1]["after"])["priority"] == 5
    document = json.loads(b"".join(viewer.get("/audit/export.json?actor=olga").streaming_content))
    assert [entry["object_id"] for entry in document] == ["demo/w1"]
    assert viewer.get("/audit/export.xml").status_code == 404


def test_a_tenants_member_sees_entries_about_it_alone(log: None) -> None:
    user = story.make_user("alice", role="")
    Membership.objects.create(user=user, role="viewer", tenant=Tenant.objects.get(slug="acme"))
    alice = Client()
    alice.force_login(user)
    html = alice.get("/audit/").content.decode()
    assert "acme/support" in html
    for foreign in ("globex", "demo/w1", "Verify the chain", "Signed log"):
        assert foreign not in html, foreign
    exported = b"".join(alice.get("/audit/export.csv").streaming_content).decode()
    assert "acme/support" in exported and "globex" not in exported and "demo/w1" not in exported
    assert alice.get("/audit/?tenant=globex").status_code == 404
    assert alice.get("/audit/export.csv?tenant=globex").status_code == 404
    assert alice.post("/audit/verify/").status_code == 403


def test_it_asks_few_queries(log: None, viewer: Client) -> None:
    with CaptureQueriesContext(connection) as asked:
        _rows(viewer)
    assert len(asked) <= 12

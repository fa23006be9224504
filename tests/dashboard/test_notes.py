"""A note on a range of time is a band on every chart and a column of its table; who wrote and deleted it is audited."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import pytest
from django.test import Client

from controlplane.audit.models import AuditEntry
from controlplane.errors import Invalid
from controlplane.workspace.models import RangeNote
from controlplane.workspace.notes import add_note
from dashboard.data import PageData
from dashboard.marks import timeline_of
from dashboard.panels import PANELS
from dashboard.scope import PageState
from tests.dashboard.people import html_of

TEXT = "New switch in rack 4 <b>="
TIMED = ("sources", "hits", "ttft", "churn")


def _note(now: datetime, *, tenant: str = "", text: str = TEXT) -> RangeNote:
    return add_note(
        actor="user:olga", begins_at=now - timedelta(minutes=3), ends_at=now - timedelta(minutes=2), text=text,
        tenant=tenant,
    )  # fmt: skip


def _post(client: Client, **values: str) -> str:
    form = {"begins_at": "2026-11-30T10:00:00", "ends_at": "2026-11-30T10:20", "text": TEXT, "tenant": "", **values}
    return client.post("/notes/?tz=Asia/Tokyo", form, follow=True).content.decode()


def test_the_form_writes_one_in_the_pages_zone_and_leads_back(operator: Client, short_fleet: None) -> None:
    answer = operator.post(
        "/notes/?tz=Asia/Tokyo",
        {"begins_at": "2026-11-30T10:00:00", "ends_at": "2026-11-30T10:20", "text": "tm_abcdef012345_" + "s" * 43,
         "tenant": "acme", "back": "/hits/?tenant=acme"},
    )  # fmt: skip
    assert answer["Location"] == "/hits/?tenant=acme"
    note = RangeNote.objects.get()
    assert note.begins_at.isoformat() == "2026-11-30T01:00:00+00:00" and note.tenant == "acme"
    assert note.text == "tm_abcdef012345"
    entry = AuditEntry.objects.get(action="note.add")
    assert entry.after is not None and entry.after["tenant"] == "acme" and entry.actor == "user:olga"


def test_it_leads_to_no_other_site(operator: Client, db: None) -> None:
    for back in ("https://evil.example/", "//evil.example/", "/\\evil.example", "javascript:alert(1)"):
        form = {"begins_at": "2026-11-30T10:00", "ends_at": "2026-11-30T11:00", "text": "x", "back": back}
        assert operator.post("/notes/", form)["Location"].startswith("/notes/?")


def test_what_is_wrong_is_said_at_its_field(operator: Client, db: None) -> None:
    assert "This is not a time." in _post(operator, ends_at="soon")
    assert "The end lies after the beginning" in _post(operator, ends_at="2026-11-30T09:00")
    assert "There is no such tenant." in _post(operator, tenant="ghost")
    assert "field-error" in _post(operator, text=" ")
    assert not RangeNote.objects.exists()


def test_a_viewer_reads_and_writes_none(viewer: Client, db: None, now: datetime) -> None:
    note = _note(now)
    assert "rack 4" in html_of(viewer, "/notes/") and "write-note" not in html_of(viewer, "/notes/")
    assert viewer.post("/notes/", {"text": "x"}).status_code == 403
    assert viewer.post(f"/notes/{note.pk}/delete/").status_code == 403


def test_a_deleted_one_stays_in_the_audit_log(operator: Client, db: None, now: datetime) -> None:
    note = _note(now)
    operator.post(f"/notes/{note.pk}/delete/")
    operator.post(f"/notes/{note.pk}/delete/")
    assert not RangeNote.objects.exists()
    assert [entry.before for entry in AuditEntry.objects.filter(action="note.delete")] == [
        {
            "begins_at": note.begins_at.isoformat(),
            "ends_at": note.ends_at.isoformat(),
            "tenant": "",
            "text": TEXT,
        }
    ]


def test_it_is_a_band_on_every_time_chart_and_a_column_of_its_table(fleet: None, now: datetime) -> None:
    _note(now)
    data = PageData(state=PageState(), now=now + timedelta(seconds=1))
    for name in TIMED:
        figure = json.loads(PANELS[name].context(data)["figure"])
        (band,) = (shape for shape in figure["layout"]["shapes"] if shape["type"] == "rect")
        assert band["x0"] < band["x1"], name
        (heads,) = (trace for trace in figure["data"] if trace.get("name") == "Notes")
        assert heads["text"] == ["New switch in rack 4 &lt;b&gt;= (olga)"], "Plotly reads tags"
        table = PANELS[name].table
        assert table is not None
        told = table(data)
        column = told.headers.index("notes")
        assert sum(row[column] is not None for row in told.rows) >= 2, name


def test_a_tenants_charts_have_its_own_notes_alone(short_fleet: None, now: datetime) -> None:
    _note(now, text="of the fleet")
    _note(now, text="of globex", tenant="globex")
    _note(now, text="of acme", tenant="acme")
    data = PageData(state=PageState(tenant="acme"), now=now)
    assert [note.words for note in data.ask(timeline_of).notes] == ["of acme (olga)"]


def test_a_range_is_of_use(db: None, now: datetime) -> None:
    for span in (timedelta(0), timedelta(days=40)):
        with pytest.raises(Invalid):
            add_note(actor="user:olga", begins_at=now - span, ends_at=now, text="x")

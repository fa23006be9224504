"""Saved views are their owner's alone."""

from __future__ import annotations

from datetime import datetime

import pytest
from django.test import Client

from controlplane.workspace import services
from controlplane.workspace.models import SavedView

pytestmark = pytest.mark.django_db

VIEW = {"name": "acme, last hour", "path": "/", "query": "from=-1h&tenant=acme&tz=UTC"}


def _steps(view: SavedView, step: str) -> str:
    return f"/views/{view.pk}/{step}/"


def test_it_keeps_a_page_with_its_state_and_finds_it_by_name(operator: Client) -> None:
    answer = operator.post("/views/", VIEW)
    assert answer["Location"] == "/?from=-1h&tenant=acme&tz=UTC"
    assert "acme, last hour" in operator.get("/views/").content.decode()
    found = operator.get("/search/", {"text": "last hour", "list": "1"}).content.decode()
    assert 'href="/?from=-1h&amp;tenant=acme&amp;tz=UTC"' in found


def test_saving_under_a_name_that_is_there_gives_it_the_address(operator: Client) -> None:
    operator.post("/views/", VIEW)
    operator.post("/views/", VIEW | {"path": "/workers/", "query": ""})
    assert [(view.name, view.address) for view in SavedView.objects.all()] == [(VIEW["name"], "/workers/")]


def test_the_default_stands_for_the_bare_address_only(operator: Client, now: datetime) -> None:
    operator.post("/views/", VIEW)
    view = SavedView.objects.get()
    operator.post(_steps(view, "default"))
    assert operator.get("/")["Location"] == view.address
    assert operator.get("/", {"tz": "UTC"}).status_code == 200
    operator.post(_steps(view, "no-default"))
    assert operator.get("/").status_code == 200


def test_a_default_of_the_bare_address_leads_nowhere(operator: Client) -> None:
    operator.post("/views/", VIEW | {"query": ""})
    operator.post(_steps(SavedView.objects.get(), "default"))
    assert operator.get("/").status_code == 200


def test_it_is_renamed_and_deleted(operator: Client) -> None:
    operator.post("/views/", VIEW)
    view = SavedView.objects.get()
    operator.post(_steps(view, "rename"), {"name": "night watch"})
    view.refresh_from_db()
    assert view.name == "night watch"
    operator.post(_steps(view, "delete"))
    assert not SavedView.objects.exists()


def test_nobody_sees_or_changes_those_of_others(operator: Client, viewer: Client) -> None:
    operator.post("/views/", VIEW)
    view = SavedView.objects.get()
    assert VIEW["name"] not in viewer.get("/views/").content.decode()
    assert "Nothing found" in viewer.get("/search/", {"text": "last hour", "list": "1"}).content.decode()
    for step in ("delete", "rename", "default"):
        viewer.post(_steps(view, step), {"name": "mine"})
    view.refresh_from_db()
    assert (view.name, view.is_default) == (VIEW["name"], False)


@pytest.mark.parametrize("path", ["https://evil.example/", "//evil.example/", "/\\evil.example/", "", "javascript:1"])
def test_it_leads_nowhere_but_to_this_site(operator: Client, path: str) -> None:
    assert operator.post("/views/", VIEW | {"path": path}).status_code == 422
    assert not SavedView.objects.exists()


def test_it_has_a_bound(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "VIEWS_MAX", 1)
    operator.post("/views/", VIEW)
    assert operator.post("/views/", VIEW | {"name": "second"}).status_code == 409
    assert SavedView.objects.count() == 1

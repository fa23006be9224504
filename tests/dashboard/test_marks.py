"""Changes stand on the time axis and in the tables, and what is compared with is drawn beside."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from django.db import transaction

from controlplane.audit.models import AuditEntry
from controlplane.audit.services import record
from controlplane.telemetry.models import SourceProgress
from dashboard.data import PageData
from dashboard.marks import MARKS_MAX, timeline_of
from dashboard.panels import PANELS
from dashboard.scope import PageState
from tests.dashboard import story

pytestmark = pytest.mark.django_db
TIMED = ("sources", "hits", "ttft", "churn")


def _changed(action: str, subject: str, *, actor: str = "user:olga") -> AuditEntry:
    kind = action.partition(".")[0]
    with transaction.atomic():
        return record(
            actor=actor,
            action=action,
            object_type=kind,
            object_id=subject,
            before=None,
            after={},
            affects_routing=False,
        )  # fmt: skip


def _data(now: datetime, **state: str) -> PageData:
    return PageData(state=PageState(**state), now=now + timedelta(seconds=1))


def _tell_twice(now: datetime, apart: timedelta) -> None:
    story.make_fleet()
    story.tell(now - apart, minutes=5, seed=3)
    # The second telling has the numbers of the first, which would count as delivered again.
    SourceProgress.objects.all().delete()
    story.tell(now, minutes=5)


@pytest.fixture
def told(fleet: None) -> datetime:
    _changed("watermark.set", "pool:demo")
    _changed("namespace.revoke", "acme/support")
    _changed("token.issue", "tmp_1")
    return story.utc_now()


def test_they_say_what_was_done_and_by_whom(told: datetime) -> None:
    words = [mark.words for mark in _data(told).ask(timeline_of).marks]
    assert words == ["watermark of pool:demo published by olga", "namespace acme/support revoked by olga"]


def test_every_time_chart_has_a_line_and_words_for_each(told: datetime) -> None:
    data = _data(told)
    for name in TIMED:
        figure = json.loads(PANELS[name].context(data)["figure"])
        assert len(figure["layout"]["shapes"]) == 2, name
        marks = next(trace for trace in figure["data"] if trace["name"] == "Changes")
        assert marks["text"][1] == "namespace acme/support revoked by olga"
        assert marks["x"][0] == figure["layout"]["shapes"][0]["x0"]


def test_the_tables_have_them_in_words(told: datetime) -> None:
    for name in TIMED:
        table = PANELS[name].table
        assert table
        rows = table(_data(told))
        cells = [row[-1] for row in rows.rows if row[-1]]
        assert rows.headers[-1] == "changes"
        assert cells == ["watermark of pool:demo published by olga; namespace acme/support revoked by olga"], name


def test_a_tenant_sees_its_own_alone(told: datetime) -> None:
    of = {
        tenant: [mark.words for mark in _data(told, tenant=tenant).ask(timeline_of).marks]
        for tenant in ("acme", "globex")
    }
    assert of == {"acme": ["namespace acme/support revoked by olga"], "globex": []}


def test_they_have_a_bound_and_the_newest_stay(fleet: None) -> None:
    for number in range(MARKS_MAX + 2):
        _changed("worker.drain", f"demo/w{number}")
    marks = _data(story.utc_now()).ask(timeline_of).marks
    assert len(marks) == MARKS_MAX
    assert marks[-1].words == f"demo/w{MARKS_MAX + 1} drains by olga"


@pytest.mark.parametrize(("cmp", "words"), [("", "period before"), ("day", "same time yesterday")])
def test_what_is_compared_with_is_drawn_at_the_times_of_the_range(now: datetime, cmp: str, words: str) -> None:
    shift = {"": timedelta(minutes=5), "day": timedelta(days=1)}[cmp]
    _tell_twice(now, shift)
    data = PageData(state=PageState(from_="-5m", cmp=cmp), now=now)
    for name in TIMED:
        figure = json.loads(PANELS[name].context(data)["figure"])
        faint = [trace for trace in figure["data"] if trace["name"].endswith(words)]
        assert faint and any(value is not None for value in faint[0]["y"]), name
        shown = figure["data"][1]["x"]
        assert faint[0]["x"][0] <= shown[-1] and faint[0]["x"][-1] >= shown[0], name


def test_nothing_is_compared_when_the_page_says_so(told: datetime) -> None:
    data = _data(told, cmp="none")
    for name in TIMED:
        names = [trace["name"] for trace in json.loads(PANELS[name].context(data)["figure"])["data"]]
        assert not any("before" in trace for trace in names), name


def test_tiles_are_compared_with_the_same_time_yesterday(now: datetime) -> None:
    _tell_twice(now, timedelta(days=1))

    def share(cmp: str, pick: Callable[[object], float | None]) -> float | None:
        return pick(PageData(state=PageState(from_="-5m", cmp=cmp), now=now).tiles.hit_share)

    previous = {cmp: share(cmp, lambda figure: figure.previous) for cmp in ("", "day", "week")}  # type: ignore[attr-defined]
    assert previous[""] is None and previous["week"] is None
    assert previous["day"] is not None and 0 < previous["day"] < 1

"""What a rule would have done in the last day, read again from the rollups."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test.utils import CaptureQueriesContext

from controlplane.alerts import preview as previews
from controlplane.alerts.evaluation import evaluate
from controlplane.alerts.models import Alert
from controlplane.alerts.preview import preview
from controlplane.alerts.selectors import bell
from controlplane.alerts.services import acknowledge_alert, checked_rule
from controlplane.fleet.models import Worker, WorkerPool
from controlplane.isolation.models import IsolationViolation
from controlplane.telemetry.merge import Contribution
from controlplane.telemetry.rollups import WORKER_TABLE, add
from tests.alerts.conftest import ACTOR, seconds, traffic

pytestmark = pytest.mark.django_db


def _rule(**values):
    given = {"name": "x", "measure": "hit_share", "comparison": "below", "threshold": 0.5, "window_s": 60}
    return checked_rule("draft", given | values)


def _minutes_ago(now, minutes: float):
    return now - timedelta(minutes=minutes)


@pytest.fixture
def day(db, now) -> None:
    """A good share all the time, but for two stretches of five minutes; nothing in the hours before."""
    for minute in range(1, 61):
        bad = 20 < minute <= 25 or 40 < minute <= 45
        traffic(_minutes_ago(now, minute), share=0.1 if bad else 0.8)


def test_it_counts_how_often_it_would_have_fired(day, now) -> None:
    found = preview(_rule(for_s=120), now=now)
    assert (found.fired, found.step_s, found.reason) == (2, 60, "")
    newest, oldest = found.episodes
    assert newest.began > oldest.began and newest.worst == pytest.approx(0.1)
    assert timedelta(minutes=2) <= newest.ended - newest.began <= timedelta(minutes=4)
    assert 0.9 < found.unknown_share < 1
    assert len(found.values) == len(found.starts()) == 1440


def test_longer_than_any_stretch_it_stays_quiet(day, now) -> None:
    assert preview(_rule(for_s=600), now=now).fired == 0
    assert preview(_rule(threshold=0.05), now=now).fired == 0


def test_every_measure_of_requests_can_be_looked_at_again(day, now) -> None:
    slow = preview(_rule(measure="ttft_p95_ms", comparison="above", threshold=100), now=now)
    [episode] = slow.episodes
    assert episode.ended is None and episode.worst == pytest.approx(200, rel=0.03)
    assert preview(_rule(measure="goodput_share", threshold=0.9), now=now).fired == 0
    assert preview(_rule(measure="error_share", comparison="above", threshold=0), now=now).fired == 0


def test_violations_count_from_their_time_to_their_acknowledgement(day, now) -> None:
    IsolationViolation.objects.create(
        at=_minutes_ago(now, 30), request_id="r1", tenant="acme", namespace="acme/a", pool="llama", worker="llama/w1",
        model="m", prompt_tokens=9, cached_tokens=8, bound_tokens=0, acknowledged_at=_minutes_ago(now, 10),
    )  # fmt: skip
    found = preview(_rule(measure="violations", comparison="above", threshold=0), now=now)
    [episode] = found.episodes
    assert abs((episode.ended - episode.began) - timedelta(minutes=20)) <= timedelta(minutes=1)


def test_workers_each_on_their_own(db, now) -> None:
    pool = WorkerPool.objects.create(slug="llama")
    for slug in ("w1", "w2"):
        Worker.objects.create(pool=pool, slug=slug, url=f"http://127.0.0.1:{slug[1]}")
    for minute in range(1, 31):
        at = _minutes_ago(now, minute)
        for slug, use in (("w1", 0.5), ("w2", 0.95 if minute < 10 else 0.5)):
            silent = slug == "w1" and 10 <= minute < 15
            values = {
                "kv_use_sum": use, "kv_use_samples": 1, "kv_samples": 1, "event_gaps": int(minute == 3),
                "polls_ok": 0 if silent else 1,
            }  # fmt: skip
            add(WORKER_TABLE, [Contribution(at.timestamp(), (f"llama/{slug}",), values)], now_s=now.timestamp())
    use = preview(_rule(measure="kv_use", comparison="above", threshold=0.9), now=now)
    assert [episode.subject for episode in use.episodes] == ["llama/w2"]
    silent = preview(_rule(measure="worker_silent_s", comparison="above", threshold=120), now=now)
    assert [episode.subject for episode in silent.episodes] == ["llama/w1"] and silent.episodes[0].worst == 300
    gaps = preview(_rule(measure="event_gaps", comparison="above", threshold=0), now=now)
    assert {episode.subject for episode in gaps.episodes} == {"llama/w1", "llama/w2"}


def test_too_many_rows_are_read_by_the_hour_and_it_says_so(day, now, monkeypatch) -> None:
    monkeypatch.setattr(previews, "ROWS_MAX", 10)
    found = preview(_rule(), now=now)
    assert found.step_s == 3600 and len(found.values) == 24


def test_without_history_it_says_so(db, now) -> None:
    found = preview(_rule(measure="router_silent_s", comparison="above", threshold=30), now=now)
    assert (found.fired, found.values) == (0, []) and "no history" in found.reason
    assert preview(_rule(), now=now).reason == "Nothing was reported in the last 24 h."


def test_it_takes_few_queries(day, now) -> None:
    from django.db import connection

    for measure in previews.COLUMNS:
        rule = _rule(measure=measure, threshold=0.5)
        with CaptureQueriesContext(connection) as asked:
            preview(rule, now=now)
        assert len(asked) <= 4, measure


def test_the_bell_counts_what_nobody_has_in_hand(make_rule, now) -> None:
    assert bell(now=now).is_late
    make_rule(severity="critical")
    traffic(now, share=0.1)
    evaluate(now)
    told = bell(now=now + seconds(5))
    assert (told.critical, told.warning, told.is_late, told.evaluated_at) == (1, 0, False, now)
    assert bell(now=now, tenants={"acme"}).critical == 0
    acknowledge_alert(Alert.objects.get().pk, actor=ACTOR, reason="in hand")
    assert bell(now=now + seconds(90)).critical == 0 and bell(now=now + seconds(90)).is_late

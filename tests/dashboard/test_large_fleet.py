"""A fleet of more workers than a panel has room for: what is shown, what is said of the rest, what it costs."""

from __future__ import annotations

import json

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from controlplane.telemetry.heat import HEAT_COLUMNS_MAX, HEAT_ROWS_MAX
from dashboard import fragments
from dashboard.data import PageData
from dashboard.panels import PANELS
from dashboard.panels.fleet import WORKERS_SHOWN
from dashboard.rail import RAIL
from dashboard.scope import PageState
from tests.dashboard import big, story

pytestmark = pytest.mark.django_db

SIZE = big.Size(tenants=12, namespaces=2, workers=HEAT_ROWS_MAX + 6, days=0.05, decisions=60)
QUERIES_MAX = 12


@pytest.fixture
def large() -> PageData:
    now = story.utc_now()
    big.fill(SIZE, now=now)
    return PageData(state=PageState(), now=now)


def test_the_heat_map_draws_the_workers_with_the_highest_mean_and_says_so(large: PageData) -> None:
    heat = large.heat
    assert len(heat.workers) == HEAT_ROWS_MAX and heat.left_out == 6
    assert len(heat.buckets) <= HEAT_COLUMNS_MAX
    context = PANELS["heat"].context(large)
    assert len(json.loads(context["figure"])["data"][0]["y"]) == HEAT_ROWS_MAX
    assert context["left_out"] == 6
    drawn = {worker: _mean(row) for worker, row in zip(heat.workers, heat.values, strict=True)}
    for worker in set(big.worker_ids(SIZE)) - set(heat.workers):
        alone = PageData(state=PageState(worker=worker), now=large.now).heat
        assert _mean(alone.values[0]) <= min(drawn.values()) + 0.05, worker


def _mean(values: list[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known)


def test_the_strip_has_those_in_trouble_first(large: PageData) -> None:
    context = PANELS["strip"].context(large)
    assert len(context["workers"]) == WORKERS_SHOWN and context["left_out"] == SIZE.workers - WORKERS_SHOWN
    assert context["workers"][0].health == "down"
    uses = [row.kv_use for row in context["workers"] if row.health == "ok"]
    assert uses == sorted(uses, reverse=True)


def test_no_page_of_the_rail_asks_more_than_the_budget(large: PageData, operator: Client) -> None:
    asked = {}
    for item in RAIL:
        operator.get(item.path)
        fragments.forget()
        with CaptureQueriesContext(connection) as captured:
            assert operator.get(item.path).status_code in (200, 302), item.path
        asked[item.path] = len(captured)
    assert {path: count for path, count in asked.items() if count > QUERIES_MAX} == {}

"""Figures for Plotly: valid for plotly.py, gaps kept as gaps, no more points than a chart can show."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import plotly.graph_objects as go
import pytest

from controlplane.telemetry.figures import HitTokensSeries, SourceSeries, TtftSeries
from controlplane.tenants.models import Tenant
from dashboard.charts import base, fleet
from dashboard.data import PageData
from dashboard.panels import CHARTS, PANELS
from dashboard.scope import PageState
from tests.dashboard import eviction_story, hot_story
from tests.dashboard.story import utc_now

POINTS_MAX = 600
TABLES = ("evicters", "eviction_workers")
"""They are tables to begin with, offered as CSV; the others are pictures."""
PICTURES = tuple(name for name in CHARTS if name not in TABLES)
ITEM = "demo/5eed00000000a001"
"""The prefix of which `prefix_trend` speaks."""


@pytest.mark.django_db
@pytest.mark.parametrize("range_", ["-15m", "-24h", "-7d"])
def test_it_builds_what_plotly_accepts(fleet: None, now: datetime, range_: str) -> None:
    hot_story.tell_hot(now)
    eviction_story.tell(now)
    data = PageData(state=PageState(from_=range_, tenant="acme", item=ITEM), now=now)
    for name in PICTURES:
        text = PANELS[name].context(data)["figure"]
        assert text, name
        figure = json.loads(text)
        go.Figure(figure)
        for trace in figure["data"]:
            assert len(trace["x"]) <= POINTS_MAX or trace["mode"] == "none", name


@pytest.mark.django_db
@pytest.mark.parametrize("name", PICTURES)
def test_it_says_what_is_missing_instead_of_drawing_zeros(now: datetime, name: str) -> None:
    Tenant.objects.create(slug="acme", name="Acme")
    context = PANELS[name].context(PageData(state=PageState(tenant="acme", item=ITEM), now=now))
    assert context["figure"] == ""
    assert context["missing"] and context["next_step"]


def test_it_keeps_a_gap_a_gap_and_breaks_the_band_there() -> None:
    first = utc_now()
    figure = fleet.ttft_figure(
        TtftSeries(
            buckets=[first + timedelta(seconds=10 * index) for index in range(4)], step_s=10, open_from=None,
            hit_p50_ms=[100, None, 120, 110], hit_p95_ms=[None] * 4, miss_p50_ms=[500, 510, 600, 580],
            miss_p95_ms=[None] * 4, delta_p50_ms=[400, None, 480, 470], hit_count=[1, None, 1, 1], miss_count=[1] * 4,
        ),
        PageState().zone,
    )  # fmt: skip
    band, hit = figure["data"][0], figure["data"][1]
    assert hit["y"] == [100, None, 120, 110]
    assert band["y"] == [500, 100, None, 600, 580, 110, 120, None]


def test_it_leaves_out_the_bucket_that_still_fills() -> None:
    first = utc_now()
    buckets = [first, first + timedelta(seconds=10)]
    series = TtftSeries(
        buckets=buckets, step_s=10, open_from=buckets[1], hit_p50_ms=[1, 2], hit_p95_ms=[1, 2], miss_p50_ms=[1, 2],
        miss_p95_ms=[1, 2], delta_p50_ms=[0, 0], hit_count=[1, 1], miss_count=[1, 1],
    )  # fmt: skip
    assert base.closed(series, series.hit_p50_ms) == [1, None]


def test_it_tells_series_apart_without_colour() -> None:
    first = utc_now()
    row = [1.0]
    series = TtftSeries(
        buckets=[first], step_s=10, open_from=None, hit_p50_ms=row, hit_p95_ms=row, miss_p50_ms=row, miss_p95_ms=row,
        delta_p50_ms=row, hit_count=row, miss_count=row,
    )  # fmt: skip
    lines = [trace for trace in fleet.ttft_figure(series, PageState().zone)["data"] if trace["mode"] != "none"]
    looks = {(trace["line"]["dash"], trace.get("marker", {}).get("symbol"), trace["line"]["color"]) for trace in lines}
    assert len(looks) == len(lines)


def test_it_begins_the_axis_where_the_data_begins_when_most_of_the_range_is_empty() -> None:
    x = [f"2026-03-04 12:{minute:02}:00" for minute in range(60)]
    values = [None] * 50 + [1.0] * 10
    figure = base.begin_with_data({"data": [{"x": x}], "layout": {"xaxis": {}}}, [values])
    assert figure["layout"]["xaxis"]["range"] == ["2026-03-04 12:48:00", "2026-03-04 12:59:00"]
    whole = base.begin_with_data({"data": [{"x": x}], "layout": {"xaxis": {}}}, [[None] * 20 + [1.0] * 40])
    assert "range" not in whole["layout"]["xaxis"]


@pytest.mark.parametrize(("loaded", "name"), [(2.5e9, "Remote hit · 2.5 GB in 320 ms"), (0, "Remote hit")])
def test_it_says_what_transfers_took_where_a_connector_counts_them(loaded: float, name: str) -> None:
    head = {"buckets": [utc_now()], "step_s": 10, "open_from": None}
    row = [1.0]
    sources = SourceSeries(**head, by_source={"external_kv_transfer": row}, loaded_bytes=[loaded], load_ms=[320.0])
    hits = HitTokensSeries(
        **head, prompt_tokens=row, delivered_hit_tokens=row, predicted_hit_tokens=row, unknown_prompt_share=row
    )
    assert fleet.sources_figure(sources, hits, PageState().zone)["data"][0]["name"] == name

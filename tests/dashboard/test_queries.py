"""The fleet page reads each thing once, and figures read together are those read alone."""

from __future__ import annotations

from datetime import datetime

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from controlplane.fleet.selectors import workers_table
from controlplane.isolation.selectors import needs_attention
from controlplane.telemetry import selectors as telemetry
from dashboard import fragments
from tests.dashboard import story

QUERIES_MAX = 12
"""Session and user, workers, findings, sources, one read of each kind of rollup, the heat map, violations, changes."""


@pytest.fixture
def now() -> datetime:
    now = story.utc_now()
    story.make_fleet()
    story.tell(now, minutes=5)
    return now


@pytest.mark.django_db
def test_the_fleet_page_reads_each_thing_once(viewer: Client, now: datetime) -> None:
    fragments.forget()
    with CaptureQueriesContext(connection) as asked:
        assert viewer.get("/").status_code == 200
    assert len(asked) <= QUERIES_MAX


@pytest.mark.django_db
def test_read_together_is_as_read_alone(now: datetime) -> None:
    scope = telemetry.last_minutes(15, now=now)
    hits, ttft = telemetry.hits_and_ttft(scope, now=now)
    sources, churn = telemetry.sources_and_churn(scope, now=now)
    assert any(hits.prompt_tokens) and any(ttft.hit_p50_ms) and any(sources.by_source.values())
    assert hits == telemetry.hit_tokens_series(scope, now=now)
    assert ttft == telemetry.ttft_series(scope, now=now)
    assert sources == telemetry.prompt_by_source_series(scope, now=now)
    assert churn == telemetry.churn_series(scope, now=now)
    workers = workers_table(now=now)
    assert telemetry.fleet_tiles(scope, now=now, workers=workers) == telemetry.fleet_tiles(scope, now=now)
    attention = needs_attention(now=now, workers=workers, sources=telemetry.freshness(now=now))
    assert attention == needs_attention(now=now)

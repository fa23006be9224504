"""The URL as the whole state of a page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.http import QueryDict
from hypothesis import given
from hypothesis import strategies as st

from dashboard.scope import read_state

NOW = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)


def test_it_shows_the_last_fifteen_minutes_by_default() -> None:
    scope = read_state({}, now=NOW).scope(NOW)
    assert (scope.from_, scope.to) == (NOW - timedelta(minutes=15), NOW)


def test_it_survives_the_way_through_the_url() -> None:
    query = {
        "from": "-6h",
        "tenant": "acme",
        "ns": "acme/support",
        "m": "running",
        "cmp": "none",
        "tz": "Europe/Berlin",
    }
    state = read_state(query, now=NOW, zones=(query["tz"],))
    assert read_state(QueryDict(state.query()).dict(), now=NOW) == state
    assert not state.notice


def test_it_keeps_a_fixed_range() -> None:
    state = read_state({"from": "2026-03-04T10:00:00Z", "to": "2026-03-04T11:00:00+00:00"}, now=NOW)
    assert not state.live
    assert state.scope(NOW).span_s == 3600


@pytest.mark.parametrize(
    "query",
    [
        {"from": "yesterday"},
        {"from": "-99999999d"},
        {"from": "-0m"},
        {"from": "2026-03-04T11:00:00Z", "to": "2026-03-04T10:00:00Z"},
        {"from": "2999-01-01T00:00:00Z"},
        {"from": "0001-01-01T00:00:00+23:59"},
        {"to": "\x00"},
    ],
)
def test_it_says_which_range_it_does_not_understand_and_shows_the_default(query: dict[str, str]) -> None:
    state = read_state(query, now=NOW)
    assert "time range" in state.notice
    assert state.scope(NOW).span_s == 900


def test_it_ignores_a_zone_that_is_a_path() -> None:
    assert read_state({"tz": "../../etc/passwd"}, now=NOW).tz == "UTC"
    assert read_state({"tz": "Mars/Olympus"}, now=NOW).tz == "UTC"


@given(
    st.dictionaries(st.sampled_from(["from", "to", "tenant", "ns", "m", "tz", "cmp", "worker"]), st.text(max_size=60))
)
def test_it_never_fails_on_any_query(query: dict[str, str]) -> None:
    state = read_state(query, now=NOW)
    assert state.scope(NOW).span_s >= 60
    assert read_state(QueryDict(state.query()).dict(), now=NOW).scope(NOW) == state.scope(NOW)

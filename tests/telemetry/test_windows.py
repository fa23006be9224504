"""Which rollup rows answer for a span of time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.telemetry.windows import POINTS_MAX, RETENTION_S, Scope, aligned_pair, cover, grid_of

NOW = datetime(2026, 5, 17, 13, 47, 23, 500_000, tzinfo=UTC)
ages = st.integers(1, 400 * 86_400)
spans = st.integers(1, 30 * 86_400)


def scope(*, age_s: float, span_s: float) -> Scope:
    from_ = NOW - timedelta(seconds=age_s)
    return Scope(from_=from_, to=from_ + timedelta(seconds=span_s))


@pytest.mark.parametrize(
    ("span_s", "age_s", "width_s", "step_s"),
    [
        (900, 900, 10, 10),
        (3600, 3600, 10, 10),
        (2 * 3600, 2 * 3600, 60, 60),
        (900, 7 * 3600, 60, 60),
        (86_400, 86_400, 3600, 3600),
        (60 * 86_400, 60 * 86_400, 3600, 4 * 3600),
    ],
)
def test_it_takes_the_finest_width_that_fits_and_is_still_kept(span_s, age_s, width_s, step_s):
    grid = grid_of(scope(age_s=age_s, span_s=span_s), now=NOW)
    assert (grid.width_s, grid.step_s) == (width_s, step_s)


@given(age_s=ages, span_s=spans)
def test_a_grid_covers_its_scope_in_few_points(age_s, span_s):
    asked = scope(age_s=age_s, span_s=span_s)
    grid = grid_of(asked, now=NOW)
    assert grid.first <= asked.from_ and asked.to <= grid.end
    assert grid.count <= POINTS_MAX + 2
    assert grid.step_s % grid.width_s == 0
    assert grid.index_of(asked.from_) == 0


@given(age_s=ages, span_s=spans)
def test_segments_tile_the_span_without_hole_or_overlap(age_s, span_s):
    current, previous = aligned_pair(scope(age_s=age_s, span_s=span_s), now=NOW)
    for span in (current, previous):
        segments = sorted(cover(span, now=NOW), key=lambda part: part.from_)
        assert segments[0].from_ <= span.from_ and segments[-1].to >= span.to
        for left, right in pairwise(segments):
            assert left.to == right.from_
        for part in segments:
            assert part.from_ < part.to
            assert part.from_.timestamp() % part.width_s == 0 == part.to.timestamp() % part.width_s
            assert (
                part.width_s == 3600 or (NOW - part.from_).total_seconds() <= RETENTION_S[part.width_s] + part.width_s
            )
    assert previous.to == current.from_


def test_an_hour_is_mostly_read_from_minutes():
    segments = cover(scope(age_s=3600, span_s=3600), now=NOW)
    rows = sum((part.to - part.from_).total_seconds() / part.width_s for part in segments)
    assert rows < 75


def test_a_scope_must_run_forward_and_know_its_zone():
    with pytest.raises(ValueError, match="end after"):
        Scope(from_=NOW, to=NOW)
    with pytest.raises(ValueError, match="aware"):
        Scope(from_=datetime(2026, 1, 1), to=datetime(2026, 1, 2))

"""Which rollup widths answer a question about a span of time. Pure: no database, no clock."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

POINTS_MAX = 360
"""More points than this are not told apart on a chart: the next width is taken."""

WIDTHS_S = (10, 60, 3600)
"""The widths of `models.Width`, finest first."""

EDGE_ROWS_MIN = 24

Retention = Mapping[int, int]
"""Width → seconds for which its rows are kept, the finest first; each a multiple of the one before."""

RETENTION_S: Retention = {10: 6 * 3600, 60: 7 * 86_400, 3600: 400 * 86_400}
SLICE_RETENTION_S: Retention = {60: 7 * 86_400, 3600: 90 * 86_400, 86_400: 400 * 86_400}
"""Of `SliceRollup`."""


@dataclass(frozen=True, slots=True)
class Scope:
    """A span of time [from_, to) and optional dimensions; an empty dimension means all."""

    from_: datetime
    to: datetime
    tenant: str = ""
    namespace: str = ""
    model: str = ""
    worker: str = ""
    pool: str = ""

    def __post_init__(self) -> None:
        if self.from_.tzinfo is None or self.to.tzinfo is None:
            raise ValueError("a scope needs aware times")
        if self.from_ >= self.to:
            raise ValueError("a scope must end after it begins")

    @property
    def span_s(self) -> float:
        return (self.to - self.from_).total_seconds()

    def earlier(self, by: timedelta | None = None) -> Scope:
        """The span of equal length that lies `by` before this one; None: that ends where this one begins."""
        shift = by or self.to - self.from_
        return replace(self, from_=self.from_ - shift, to=self.to - shift)


@dataclass(frozen=True, slots=True)
class Grid:
    """Equal buckets over a span: `width_s` rows are read, `step_s` (a multiple) is one point."""

    first: datetime
    step_s: int
    width_s: int
    count: int

    @property
    def segment(self) -> Segment:
        """The rows of its points."""
        return Segment(self.width_s, self.first, self.end)

    @property
    def end(self) -> datetime:
        return self.first + timedelta(seconds=self.step_s * self.count)

    def starts(self) -> list[datetime]:
        return [self.first + timedelta(seconds=self.step_s * index) for index in range(self.count)]

    def index_of(self, at: datetime) -> int | None:
        """The bucket that holds `at`, or None outside the grid."""
        index = int((at - self.first).total_seconds() // self.step_s)
        return index if 0 <= index < self.count else None


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows of one width whose start lies in [from_, to)."""

    width_s: int
    from_: datetime
    to: datetime


def grid_of(scope: Scope, *, now: datetime, kept: Retention = RETENTION_S) -> Grid:
    """The finest grid of at most POINTS_MAX points whose rows are still kept at the scope's beginning."""
    width_s = _width_for(scope.span_s, (now - scope.from_).total_seconds(), kept)
    step_s = width_s * max(1, math.ceil(scope.span_s / (POINTS_MAX * width_s)))
    first = floor_to(scope.from_, step_s)
    count = max(1, math.ceil((scope.to - first).total_seconds() / step_s))
    return Grid(first=first, step_s=step_s, width_s=width_s, count=count)


def _width_for(span_s: float, age_s: float, kept: Retention) -> int:
    for width_s, kept_s in kept.items():
        if span_s <= width_s * POINTS_MAX and age_s <= kept_s:
            return width_s
    return max(kept)


def cover(scope: Scope, *, now: datetime, kept: Retention = RETENTION_S, edge_s: int = 0) -> list[Segment]:
    """Segments that tile the scope with as few rows as they can: coarse ones inside, finer rows at the edges.

    Edges are cut to the finest width still kept at that age, or to `edge_s` where that is coarser. All widths are
    written in one transaction, so any mixture sums to the same.
    """
    widths = list(kept)
    finest_s = max(edge_s, _finest_kept(now - scope.from_, kept))
    return _cover(floor_to(scope.from_, finest_s), ceil_to(scope.to, finest_s), widths[widths.index(finest_s) :])


def edge_of(scope: Scope) -> int:
    """Where a ranking over many rows may cut its edges, in seconds: the widest row of slices of which the span holds
    EDGE_ROWS_MIN, so that at most 4 % at either end are rounded."""
    return max((width_s for width_s in SLICE_RETENTION_S if width_s * EDGE_ROWS_MIN <= scope.span_s), default=0)


def aligned_pair(scope: Scope, *, now: datetime, by: timedelta | None = None) -> tuple[Scope, Scope]:
    """The scope widened to whole buckets, and the one it is compared with: of equal length, `by` earlier.

    None: right before it; they share no bucket.
    """
    finest_s = _finest_kept(now - scope.from_, RETENTION_S)
    current = replace(scope, from_=floor_to(scope.from_, finest_s), to=ceil_to(scope.to, finest_s))
    previous = current.earlier(by)
    older_s = _finest_kept(now - previous.from_, RETENTION_S)
    return current, replace(previous, from_=floor_to(previous.from_, older_s))


def series_head(grid: Grid, now: datetime) -> dict[str, Any]:
    """Buckets, step and the first open bucket, as `figures.Series` takes them."""
    open_from = floor_to(now, grid.step_s)
    # The grid may begin off the clock's own multiples of a long step: the open bucket is the one that holds now.
    index = grid.index_of(now)
    if index is not None:
        open_from = grid.starts()[index]
    return {"buckets": grid.starts(), "step_s": grid.step_s, "open_from": open_from if open_from < grid.end else None}


def _finest_kept(age: timedelta, kept: Retention) -> int:
    return next((width_s for width_s, kept_s in kept.items() if age.total_seconds() <= kept_s), max(kept))


def _cover(from_: datetime, to: datetime, widths: list[int]) -> list[Segment]:
    """Tile [from_, to), whose ends are multiples of the first width, with that and the coarser ones."""
    if from_ >= to:
        return []
    width_s, *coarser = widths
    if not coarser:
        return [Segment(width_s, from_, to)]
    inner_from, inner_to = ceil_to(from_, coarser[0]), floor_to(to, coarser[0])
    if inner_from >= inner_to:
        return [Segment(width_s, from_, to)]
    edges = [(from_, inner_from), (inner_to, to)]
    return [Segment(width_s, a, b) for a, b in edges if a < b] + _cover(inner_from, inner_to, coarser)


def floor_to(at: datetime, width_s: int) -> datetime:
    return datetime.fromtimestamp(at.timestamp() // width_s * width_s, UTC)


def ceil_to(at: datetime, width_s: int) -> datetime:
    return datetime.fromtimestamp(-(-at.timestamp() // width_s) * width_s, UTC)

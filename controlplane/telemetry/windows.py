"""Which rollup widths answer a question about a span of time. Pure: no database, no clock."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

POINTS_MAX = 360
"""More points than this are not told apart on a chart: the next width is taken."""

WIDTHS_S = (10, 60, 3600)
"""The widths of `models.Width`, finest first."""

RETENTION_S = {10: 6 * 3600, 60: 7 * 86_400, 3600: 400 * 86_400}
"""How long rows of each width are kept."""


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

    def previous(self) -> Scope:
        """The span of equal length that ends where this one begins."""
        return replace(self, from_=self.from_ - (self.to - self.from_), to=self.from_)


@dataclass(frozen=True, slots=True)
class Grid:
    """Equal buckets over a span: `width_s` rows are read, `step_s` (a multiple) is one point."""

    first: datetime
    step_s: int
    width_s: int
    count: int

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


def grid_of(scope: Scope, *, now: datetime) -> Grid:
    """The finest grid of at most POINTS_MAX points whose rows are still kept at the scope's beginning."""
    width_s = _width_for(scope.span_s, age_s=(now - scope.from_).total_seconds())
    step_s = width_s * max(1, math.ceil(scope.span_s / (POINTS_MAX * width_s)))
    first = floor_to(scope.from_, step_s)
    count = max(1, math.ceil((scope.to - first).total_seconds() / step_s))
    return Grid(first=first, step_s=step_s, width_s=width_s, count=count)


def _width_for(span_s: float, *, age_s: float) -> int:
    for width_s in WIDTHS_S:
        if span_s <= width_s * POINTS_MAX and age_s <= RETENTION_S[width_s]:
            return width_s
    return WIDTHS_S[-1]


def cover(scope: Scope, *, now: datetime) -> list[Segment]:
    """Segments that tile the scope with as few rows as they can: hours inside, finer rows at the edges.

    Edges are cut to the finest width still kept at that age. All widths are written in one transaction, so any
    mixture sums to the same.
    """
    finest_s = _finest_kept(now - scope.from_)
    return _cover(floor_to(scope.from_, finest_s), ceil_to(scope.to, finest_s), WIDTHS_S.index(finest_s))


def aligned_pair(scope: Scope, *, now: datetime) -> tuple[Scope, Scope]:
    """The scope widened to whole buckets, and the span of equal length before it: they share no bucket."""
    finest_s = _finest_kept(now - scope.from_)
    current = replace(scope, from_=floor_to(scope.from_, finest_s), to=ceil_to(scope.to, finest_s))
    previous = current.previous()
    older_s = _finest_kept(now - previous.from_)
    return current, replace(previous, from_=floor_to(previous.from_, older_s))


def _finest_kept(age: timedelta) -> int:
    return next((width_s for width_s in WIDTHS_S if age.total_seconds() <= RETENTION_S[width_s]), WIDTHS_S[-1])


def _cover(from_: datetime, to: datetime, index: int) -> list[Segment]:
    """Tile [from_, to), whose ends are multiples of WIDTHS_S[index], with that width and coarser ones."""
    if from_ >= to:
        return []
    if index + 1 == len(WIDTHS_S):
        return [Segment(WIDTHS_S[index], from_, to)]
    inner_from, inner_to = ceil_to(from_, WIDTHS_S[index + 1]), floor_to(to, WIDTHS_S[index + 1])
    if inner_from >= inner_to:
        return [Segment(WIDTHS_S[index], from_, to)]
    edges = [(from_, inner_from), (inner_to, to)]
    return [Segment(WIDTHS_S[index], a, b) for a, b in edges if a < b] + _cover(inner_from, inner_to, index + 1)


def floor_to(at: datetime, width_s: int) -> datetime:
    return datetime.fromtimestamp(at.timestamp() // width_s * width_s, UTC)


def ceil_to(at: datetime, width_s: int) -> datetime:
    return datetime.fromtimestamp(-(-at.timestamp() // width_s) * width_s, UTC)

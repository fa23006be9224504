"""Charts as SVG text, for pages, files and paper alike: no script, no style attribute, no font of their own. Pure.

Text and grid take the colour of what is around them. Each series has its colour, its dash and its name at the line's
end, so that colour never carries meaning alone. A gap in the figures is a gap in the line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 720, 190
LEFT, RIGHT, TOP, BOTTOM = 52, 108, 12, 26
"""Margins: ticks on the left, names of series on the right, days below."""
TICKS = 4
LABELS_MAX = 8
LABEL_GAP = 13
"""Between the names of two series, so that they do not cover each other."""
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
"""Okabe–Ito. Blue is hit and orange is miss everywhere in the product."""
DASHES = {BLUE: "", ORANGE: "6 3", GREEN: "2 3", PURPLE: "8 3 2 3", "currentColor": "3 3"}

Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    color: str
    values: Values


@dataclass(frozen=True, slots=True)
class Band:
    """Between two rows of values."""

    low: Values
    high: Values
    color: str = BLUE


def lines(
    title: str, labels: Sequence[str], series: Sequence[Line], *, unit: str, limit: tuple[str, float] | None = None,
    band: Band | None = None,
) -> str:  # fmt: skip
    """`unit`: `share`, `ms`, `tokens` or "". `limit`: name and value of a horizontal rule. "" without any figure."""
    values = [value for one in series for value in one.values if value is not None]
    if not values:
        return ""
    edges = [value for row in (band.low, band.high) for value in row if value is not None] if band else []
    rule = [limit[1]] if limit else []
    plot = _Plot(len(labels), _top([*values, *edges, *rule], unit))
    parts = [_grid(plot, unit), _days(plot, labels)]
    if band:
        parts.append(_band(plot, band))
    if limit:
        parts.append(_rule(plot, limit[1]))
    parts += [_path(plot, one) for one in series] + [_names(plot, series, limit)]
    return _svg(title, parts)


def stacked_bars(title: str, labels: Sequence[str], series: Sequence[Line], *, unit: str) -> str:
    """The first series lies at the bottom."""
    totals = [sum(one.values[index] or 0 for one in series) for index in range(len(labels))]
    if not any(totals):
        return ""
    plot = _Plot(len(labels), _top(totals, unit))
    below = [0.0] * len(labels)
    parts = [_grid(plot, unit), _days(plot, labels)]
    for one in series:
        for index, value in enumerate(one.values):
            if value:
                parts.append(_bar(plot, index, below[index], value, one.color))
                below[index] += value
    return _svg(title, [*parts, _legend(series)])


@dataclass(frozen=True, slots=True)
class _Plot:
    count: int
    top: float

    @property
    def step(self) -> float:
        return (WIDTH - LEFT - RIGHT) / max(1, self.count)

    def x(self, index: float) -> float:
        return LEFT + (index + 0.5) * self.step

    def y(self, value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - min(max(value, 0.0), self.top) / self.top)


def _top(values: Sequence[float], unit: str) -> float:
    """The end of the axis: a round number at or above the largest value; a share ends at 1."""
    largest = max(values)
    if unit == "share":
        return 1.0 if largest > 0.5 else _round_up(largest)
    return _round_up(largest)


def _round_up(value: float) -> float:
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * factor for factor in (1, 2, 4, 5, 8, 10) if power * factor >= value * 0.999)


def tick(value: float, unit: str) -> str:
    """A round number of an axis."""
    if unit == "share":
        return f"{value * 100:.3g} %"
    for factor, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor and unit != "ms":
            return f"{value / factor:.3g} {letter}"
    if unit == "ms":
        return f"{value / 1000:.3g} s" if value >= 1000 else f"{value:.3g} ms"
    return f"{value:.3g}"


def _grid(plot: _Plot, unit: str) -> str:
    parts = []
    for number in range(TICKS + 1):
        value = plot.top * number / TICKS
        y = plot.y(value)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="currentColor" '
            f'stroke-opacity="{0.35 if number == 0 else 0.12}"/>'
            f'<text x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end" font-size="10" fill="currentColor" '
            f'fill-opacity="0.75">{tick(value, unit)}</text>'
        )
    return "".join(parts)


def _days(plot: _Plot, labels: Sequence[str]) -> str:
    every = max(1, math.ceil(len(labels) / LABELS_MAX))
    return "".join(
        f'<text x="{plot.x(index):.1f}" y="{HEIGHT - 8}" text-anchor="middle" font-size="10" fill="currentColor" '
        f'fill-opacity="0.75">{escape(label)}</text>'
        for index, label in enumerate(labels)
        if index % every == 0
    )


def _path(plot: _Plot, line: Line) -> str:
    """Unbroken runs as lines; a lone day as a dot."""
    found, run = [], []
    for index, value in enumerate([*line.values, None]):
        if value is not None:
            run.append((plot.x(index), plot.y(value)))
        elif run:
            found.append(_run(run, line.color))
            run = []
    return "".join(found)


def _run(points: Sequence[tuple[float, float]], color: str) -> str:
    if len(points) == 1:
        return f'<circle cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="2.5" fill="{color}"/>'
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    how = f'fill="none" stroke="{color}" stroke-width="2" stroke-linejoin="round"{_dash(color)}'
    return f'<polyline points="{path}" {how}/>'


def _dash(color: str) -> str:
    return f' stroke-dasharray="{DASHES[color]}"' if DASHES.get(color) else ""


def _band(plot: _Plot, band: Band) -> str:
    known = [
        (plot.x(index), plot.y(low), plot.y(high))
        for index, (low, high) in enumerate(zip(band.low, band.high, strict=True))
        if low is not None and high is not None
    ]
    if len(known) < 2:
        return ""
    there = [f"{x:.1f},{high:.1f}" for x, _, high in known]
    back = [f"{x:.1f},{low:.1f}" for x, low, _ in reversed(known)]
    return f'<polygon points="{" ".join(there + back)}" fill="{band.color}" fill-opacity="0.15"/>'


def _rule(plot: _Plot, value: float) -> str:
    y = plot.y(value)
    return (
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="currentColor" stroke-width="1.2" '
        f'stroke-dasharray="3 3"/>'
    )


def _names(plot: _Plot, series: Sequence[Line], limit: tuple[str, float] | None) -> str:
    """At each line's last value, moved apart where they would meet."""
    right = WIDTH - RIGHT
    ends = [(plot.y(limit[1]), limit[0], "currentColor")] if limit else []
    for line in series:
        last = next((value for value in reversed(line.values) if value is not None), None)
        if last is not None and line.name:
            ends.append((plot.y(last), line.name, line.color))
    ends.sort()
    for index in range(1, len(ends)):
        y, name, color = ends[index]
        ends[index] = (max(y, ends[index - 1][0] + LABEL_GAP), name, color)
    return "".join(
        f'<line x1="{right + 4}" x2="{right + 20}" y1="{y:.1f}" y2="{y:.1f}" stroke="{color}" stroke-width="2"'
        f"{_dash(color)}/>"
        f'<text x="{right + 24}" y="{y + 3.5:.1f}" font-size="10.5" fill="currentColor">{escape(name)}</text>'
        for y, name, color in ends
    )


def _bar(plot: _Plot, index: int, below: float, value: float, color: str) -> str:
    width = plot.step * 0.72
    top, bottom = plot.y(below + value), plot.y(below)
    return (
        f'<rect x="{plot.x(index) - width / 2:.1f}" y="{top:.1f}" width="{width:.1f}" height="{bottom - top:.1f}" '
        f'fill="{color}"/>'
    )


def _legend(series: Sequence[Line]) -> str:
    """On the right, in the order in which they are stacked."""
    return "".join(
        f'<rect x="{WIDTH - RIGHT + 6}" y="{TOP + 6 + place * 18}" width="9" height="9" fill="{line.color}"/>'
        f'<text x="{WIDTH - RIGHT + 20}" y="{TOP + 14 + place * 18}" font-size="10.5" '
        f'fill="currentColor">{escape(line.name)}</text>'
        for place, line in enumerate(reversed(series))
    )


def _svg(title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg class="report-chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}" '
        f'font-family="inherit">{"".join(parts)}</svg>'
    )

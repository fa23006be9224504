"""Parts of figures for Plotly, as plain dicts: what `plotly.graph_objects` would build, without its cost.

Colours follow Okabe–Ito; each series has a dash or marker of its own, so that colour never speaks alone.
Fonts, grid and background are the page's: the chart element sets them from the theme.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from controlplane.telemetry.figures import Series, Values

Figure = dict[str, Any]
"""JSON for Plotly: values are strings, numbers, lists and dicts of these."""

HIT, MISS = "#0072B2", "#D55E00"
"""One hue pair for hit and miss in the whole product."""
AMBER, GREEN, PINK, SKY, GREY = "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#8592a3"

BUCKETS_SHOWN_MIN = 12
"""However little there is, the axis spans as many buckets: two minutes of the default range."""
_MINUTE_MS, _HALF_DAY_MS = 60_000, 43_200_000
_TICKS = [
    {"dtickrange": [None, _MINUTE_MS - 1], "value": "%H:%M:%S"},
    {"dtickrange": [_MINUTE_MS, _HALF_DAY_MS - 1], "value": "%H:%M"},
    {"dtickrange": [_HALF_DAY_MS, None], "value": "%d %b"},
]
"""One line for each tick: Plotly's default adds the date below the first."""


def times(series: Series, zone: ZoneInfo) -> list[str]:
    """Bucket starts as wall-clock text: Plotly's dates know no zones."""
    return [at.astimezone(zone).strftime("%Y-%m-%d %H:%M:%S") for at in series.buckets]


def closed(series: Series, values: Values) -> Values:
    """`values` without the buckets that still fill: a half-filled bucket reads as a drop."""
    return [None if _open(series, at) else value for at, value in zip(series.buckets, values, strict=True)]


def _open(series: Series, at: datetime) -> bool:
    return series.open_from is not None and at >= series.open_from


def per_second(series: Series, values: Values) -> Values:
    return [None if value is None else value / series.step_s for value in closed(series, values)]


def begin_with_data(figure: Figure, known: Sequence[Values]) -> Figure:
    """The figure with its time axis cut to where the first value is, when most of the range lies before it.

    A fleet that was started a minute ago would else be a sliver at the right edge.
    """
    x = next((trace["x"] for trace in figure["data"] if len(trace["x"]) == len(known[0])), None) if known else None
    first = next((at for at, column in enumerate(zip(*known, strict=True)) if any(v is not None for v in column)), 0)
    if x and first > len(x) / 2:
        figure["layout"]["xaxis"]["range"] = [x[max(0, min(first - 1, len(x) - BUCKETS_SHOWN_MIN))], x[-1]]
    return figure


def line(
    name: str,
    x: Sequence[str],
    y: Values,
    *,
    colour: str,
    dash: str = "solid",
    marker: str = "",
    fill: str = "",
    width: float = 1.8,
) -> Figure:
    trace: Figure = {
        "type": "scatter",
        "mode": "lines+markers" if marker else "lines",
        "name": name,
        "x": list(x),
        "y": rounded(y),
        "line": {"color": colour, "dash": dash, "width": width},
        "connectgaps": False,
    }
    if marker:
        trace["marker"] = {"symbol": marker, "size": 4, "color": colour}
    if fill:
        trace |= {"fill": fill, "fillcolor": translucent(colour)}
    return trace


def earlier(name: str, series: Series, values: Values, *, by: timedelta, zone: ZoneInfo, colour: str = GREY) -> Figure:
    """What the page compares with, `by` earlier, moved to the times of the shown range: faint and dashed."""
    x = [(at + by).astimezone(zone).strftime("%Y-%m-%d %H:%M:%S") for at in series.buckets]
    return line(name, x, values, colour=colour, dash="longdash", width=1.1) | {"opacity": 0.6, "meta": "earlier"}


def band(name: str, x: Sequence[str], low: Values, high: Values, *, colour: str) -> Figure:
    """The area between two lines, one polygon for each run of buckets where both are known."""
    points: list[tuple[str | None, float | None]] = []
    run: list[int] = []
    for index in range(len(x) + 1):
        if index < len(x) and low[index] is not None and high[index] is not None:
            run.append(index)
        elif run:
            points += [(x[at], high[at]) for at in run] + [(x[at], low[at]) for at in reversed(run)] + [(None, None)]
            run = []
    return {
        "type": "scatter",
        "mode": "none",
        "name": name,
        "x": [at for at, _ in points],
        "y": rounded([value for _, value in points]),
        "fill": "toself",
        "fillcolor": translucent(colour),
        "hoverinfo": "skip",
    }


def translucent(colour: str) -> str:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.16)"


def figure(data: list[Figure], *, y_title: str, **layout: Any) -> Figure:
    return {
        "data": data,
        "layout": {
            "uirevision": "keep",
            "margin": {"l": 52, "r": 8, "t": 6, "b": 26},
            "hovermode": "x unified",
            "showlegend": True,
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"size": 11}},
            "xaxis": {"type": "date", "tickformatstops": _TICKS},
            "yaxis": {"title": {"text": y_title, "standoff": 6}, "rangemode": "tozero", "automargin": True},
            **layout,
        },
    }


def rounded(values: Values) -> Values:
    """Four significant digits: what a pixel can show, at a third of the bytes."""
    return [None if value is None else float(f"{value:.4g}") for value in values]

"""Figures for Plotly, as plain dicts: what `plotly.graph_objects` would build, without its cost on each update.

Colours follow Okabe–Ito; each series has a dash or marker of its own, so that colour never speaks alone.
Fonts, grid and background are the page's: the chart element sets them from the theme.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from controlplane.telemetry.figures import (
    ChurnSeries,
    HeatMap,
    HitTokensSeries,
    Series,
    SourceSeries,
    TtftSeries,
    Values,
)

Figure = dict[str, Any]
"""JSON for Plotly: values are strings, numbers, lists and dicts of these."""

HIT, MISS = "#0072B2", "#D55E00"
"""One hue pair for hit and miss in the whole product."""
AMBER, GREEN, PINK, SKY = "#E69F00", "#009E73", "#CC79A7", "#56B4E9"

_SOURCES = {
    "local_compute": ("Computed", MISS, "/"),
    "local_cache_hit": ("Local hit", HIT, ""),
    "external_kv_transfer": ("Remote hit", SKY, "."),
}
BUCKETS_SHOWN_MIN = 12
"""However little there is, the axis spans as many buckets: two minutes of the default range."""
_OTHER_SOURCES = (PINK, GREEN, AMBER)
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


def sources_figure(sources: SourceSeries, hits: HitTokensSeries, zone: ZoneInfo) -> Figure:
    """Prompt tokens per second by source, stacked, with the router's predicted hit as a line."""
    x = times(sources, zone)
    spare = iter(_OTHER_SOURCES * 3)
    data = []
    for source in _in_order(sources.by_source):
        name, colour, pattern = _SOURCES.get(source) or (source.replace("_", " "), next(spare), "x")
        data.append(
            {
                "type": "bar",
                "name": name,
                "x": x,
                "y": _rounded(per_second(sources, sources.by_source[source])),
                "marker": {"color": colour, "pattern": {"shape": pattern, "solidity": 0.25, "size": 5}},
                "hovertemplate": "%{y:.3s} tok/s",
            }
        )
    data.append(
        _line("Predicted hit", times(hits, zone), per_second(hits, hits.predicted_hit_tokens), colour=AMBER, dash="dot")
        | {"hovertemplate": "%{y:.3s} tok/s"}
    )
    return _figure(data, y_title="tokens/s", barmode="stack", bargap=0.08)


def hit_tokens_figure(hits: HitTokensSeries, zone: ZoneInfo) -> Figure:
    """Delivered and predicted hit tokens per second beside all prompt tokens."""
    x = times(hits, zone)
    data = [
        _line("All prompt tokens", x, per_second(hits, hits.prompt_tokens), colour="#8592a3", dash="dash"),
        _line("Delivered hit", x, per_second(hits, hits.delivered_hit_tokens), colour=HIT, fill="tozeroy"),
        _line("Predicted hit", x, per_second(hits, hits.predicted_hit_tokens), colour=AMBER, dash="dot"),
    ]
    return _figure([trace | {"hovertemplate": "%{y:.3s} tok/s"} for trace in data], y_title="tokens/s")


def ttft_figure(ttft: TtftSeries, zone: ZoneInfo) -> Figure:
    """TTFT of hits against misses; the band between the medians is what caching saves."""
    x = times(ttft, zone)
    hit, miss = closed(ttft, ttft.hit_p50_ms), closed(ttft, ttft.miss_p50_ms)
    data = [
        _band("Delta p50", x, hit, miss, colour=GREEN),
        _line("Hit p50", x, hit, colour=HIT, marker="circle"),
        _line("Hit p95", x, closed(ttft, ttft.hit_p95_ms), colour=HIT, dash="dot"),
        _line("Miss p50", x, miss, colour=MISS, marker="square"),
        _line("Miss p95", x, closed(ttft, ttft.miss_p95_ms), colour=MISS, dash="dot"),
    ]
    for trace in data[1:]:
        trace["hovertemplate"] = "%{y:,.3~r} ms"
    return _figure(data, y_title="ms")


def heat_figure(heat: HeatMap, zone: ZoneInfo) -> Figure:
    """Workers × time in cividis. A gap stays empty."""
    share = heat.unit == "share"
    factor = 100 if share else 1
    z = [_rounded([None if v is None else v * factor for v in closed(heat, row)]) for row in heat.values]
    trace: Figure = {
        "type": "heatmap",
        # A click leads to the worker at the time of the cell.
        "meta": {"first_s": heat.buckets[0].timestamp() if heat.buckets else 0, "step_s": heat.step_s},
        "x": times(heat, zone),
        "y": heat.workers,
        "z": z,
        "colorscale": "Cividis",
        "xgap": 1,
        "ygap": 2,
        "zmin": 0,
        "hoverongaps": False,
        # Plotly's own colour bar sets a style attribute, which the content security policy refuses: the page draws one.
        "showscale": False,
        "hovertemplate": f"%{{y}}<br>%{{x}}<br>%{{z:.3~r}} {'%' if share else heat.unit}<extra></extra>",
    }
    trace["zmax"] = heat_top(heat) * factor
    figure = _figure([trace], y_title="")
    figure["layout"]["hovermode"] = "closest"
    figure["layout"]["yaxis"] |= {"type": "category", "autorange": "reversed", "rangemode": "normal"}
    figure["layout"]["showlegend"] = False
    return figure


def heat_top(heat: HeatMap) -> float:
    """The value of the scale's bright end: 1 for shares, else the largest seen."""
    if heat.unit == "share":
        return 1.0
    return max((value for row in heat.values for value in row if value is not None), default=0.0) or 1.0


def churn_figure(churn: ChurnSeries, zone: ZoneInfo) -> Figure:
    """Blocks stored and removed per minute, their net, and what was stored again soon after its removal."""
    x = times(churn, zone)
    data = [
        _line("Stored", x, closed(churn, churn.stored_per_min), colour=GREEN),
        _line("Removed", x, closed(churn, churn.removed_per_min), colour=MISS, dash="dash"),
        _line("Net", x, closed(churn, churn.net_per_min), colour="#8592a3", dash="dot"),
        _line("Re-stored ≤ 5 min", x, closed(churn, churn.restored_per_min), colour=PINK, marker="diamond"),
    ]
    figure = _figure([trace | {"hovertemplate": "%{y:,.3~r} blocks/min"} for trace in data], y_title="blocks/min")
    figure["layout"]["yaxis"]["rangemode"] = "normal"
    return figure


def _line(
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
        "y": _rounded(y),
        "line": {"color": colour, "dash": dash, "width": width},
        "connectgaps": False,
    }
    if marker:
        trace["marker"] = {"symbol": marker, "size": 4, "color": colour}
    if fill:
        trace |= {"fill": fill, "fillcolor": _translucent(colour)}
    return trace


def _band(name: str, x: Sequence[str], low: Values, high: Values, *, colour: str) -> Figure:
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
        "y": _rounded([value for _, value in points]),
        "fill": "toself",
        "fillcolor": _translucent(colour),
        "hoverinfo": "skip",
    }


def _translucent(colour: str) -> str:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.16)"


def _figure(data: list[Figure], *, y_title: str, **layout: Any) -> Figure:
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


def _in_order(by_source: dict[str, Values]) -> list[str]:
    """Known sources first; a source that gave nothing in the whole range is left out."""
    seen = {source for source, values in by_source.items() if any(values)}
    return [source for source in _SOURCES if source in seen] + sorted(seen - set(_SOURCES))


def _rounded(values: Values) -> Values:
    """Four significant digits: what a pixel can show, at a third of the bytes."""
    return [None if value is None else float(f"{value:.4g}") for value in values]

"""Figures of the fleet: sources, hit tokens, TTFT, heat map, churn."""

from __future__ import annotations

from zoneinfo import ZoneInfo

from controlplane.telemetry.figures import ChurnSeries, HeatMap, HitTokensSeries, SourceSeries, TtftSeries, Values
from dashboard.charts.base import (
    AMBER,
    GREEN,
    GREY,
    HIT,
    MISS,
    PINK,
    SKY,
    Figure,
    band,
    closed,
    figure,
    line,
    per_second,
    rounded,
    times,
)

TRANSFERRED = "external_kv_transfer"
_SOURCES = {
    "local_compute": ("Computed", MISS, "/"),
    "local_cache_hit": ("Local hit", HIT, ""),
    TRANSFERRED: ("Remote hit", SKY, "."),
}
_OTHER_SOURCES = (PINK, GREEN, AMBER)


def sources_figure(sources: SourceSeries, hits: HitTokensSeries, zone: ZoneInfo) -> Figure:
    """Prompt tokens per second by source, stacked, with the router's predicted hit as a line."""
    x = times(sources, zone)
    spare = iter(_OTHER_SOURCES * 3)
    data = []
    for source in _in_order(sources.by_source):
        name, colour, pattern = _SOURCES.get(source) or (source.replace("_", " "), next(spare), "x")
        if source == TRANSFERRED:
            name += _transfers(sources)
        data.append(
            {
                "type": "bar",
                "name": name,
                "x": x,
                "y": rounded(per_second(sources, sources.by_source[source])),
                "marker": {"color": colour, "pattern": {"shape": pattern, "solidity": 0.25, "size": 5}},
                "hovertemplate": "%{y:.3s} tok/s",
            }
        )
    data.append(
        line("Predicted hit", times(hits, zone), per_second(hits, hits.predicted_hit_tokens), colour=AMBER, dash="dot")
        | {"hovertemplate": "%{y:.3s} tok/s"}
    )
    return figure(data, y_title="tokens/s", barmode="stack", bargap=0.08)


def all_sources(sources: SourceSeries) -> Values:
    """Prompt tokens per second, whatever their source."""
    totals: Values = [
        None if all(value is None for value in column) else sum(value or 0.0 for value in column)
        for column in zip(*sources.by_source.values(), strict=True)
    ] or [None] * len(sources.buckets)
    return per_second(sources, totals)


def _transfers(sources: SourceSeries) -> str:
    """` · 1.4 GB in 320 ms`, "" where no connector counts it."""
    size, time_ms = (sum(value or 0 for value in values) for values in (sources.loaded_bytes, sources.load_ms))
    return f" · {size / 1e9:,.1f} GB in {time_ms:,.0f} ms" if size else ""


def hit_tokens_figure(hits: HitTokensSeries, zone: ZoneInfo) -> Figure:
    """Delivered and predicted hit tokens per second beside all prompt tokens."""
    x = times(hits, zone)
    data = [
        line("All prompt tokens", x, per_second(hits, hits.prompt_tokens), colour=GREY, dash="dash"),
        line("Delivered hit", x, per_second(hits, hits.delivered_hit_tokens), colour=HIT, fill="tozeroy"),
        line("Predicted hit", x, per_second(hits, hits.predicted_hit_tokens), colour=AMBER, dash="dot"),
    ]
    return figure([trace | {"hovertemplate": "%{y:.3s} tok/s"} for trace in data], y_title="tokens/s")


def ttft_figure(ttft: TtftSeries, zone: ZoneInfo) -> Figure:
    """TTFT of hits against misses; the band between the medians is what caching saves."""
    x = times(ttft, zone)
    hit, miss = closed(ttft, ttft.hit_p50_ms), closed(ttft, ttft.miss_p50_ms)
    data = [
        band("Delta p50", x, hit, miss, colour=GREEN),
        line("Hit p50", x, hit, colour=HIT, marker="circle"),
        line("Hit p95", x, closed(ttft, ttft.hit_p95_ms), colour=HIT, dash="dot"),
        line("Miss p50", x, miss, colour=MISS, marker="square"),
        line("Miss p95", x, closed(ttft, ttft.miss_p95_ms), colour=MISS, dash="dot"),
    ]
    for trace in data[1:]:
        trace["hovertemplate"] = "%{y:,.3~r} ms"
    return figure(data, y_title="ms")


def heat_figure(heat: HeatMap, zone: ZoneInfo) -> Figure:
    """Workers × time in cividis. A gap stays empty."""
    share = heat.unit == "share"
    factor = 100 if share else 1
    z = [rounded([None if v is None else v * factor for v in closed(heat, row)]) for row in heat.values]
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
    drawn = figure([trace], y_title="")
    drawn["layout"]["hovermode"] = "closest"
    drawn["layout"]["yaxis"] |= {"type": "category", "autorange": "reversed", "rangemode": "normal"}
    drawn["layout"]["showlegend"] = False
    return drawn


def heat_top(heat: HeatMap) -> float:
    """The value of the scale's bright end: 1 for shares, else the largest seen."""
    if heat.unit == "share":
        return 1.0
    return max((value for row in heat.values for value in row if value is not None), default=0.0) or 1.0


def churn_figure(churn: ChurnSeries, zone: ZoneInfo) -> Figure:
    """Blocks stored and removed per minute, their net, and what was stored again soon after its removal."""
    x = times(churn, zone)
    data = [
        line("Stored", x, closed(churn, churn.stored_per_min), colour=GREEN),
        line("Removed", x, closed(churn, churn.removed_per_min), colour=MISS, dash="dash"),
        line("Net", x, closed(churn, churn.net_per_min), colour=GREY, dash="dot"),
        line("Re-stored ≤ 5 min", x, closed(churn, churn.restored_per_min), colour=PINK, marker="diamond"),
    ]
    drawn = figure([trace | {"hovertemplate": "%{y:,.3~r} blocks/min"} for trace in data], y_title="blocks/min")
    drawn["layout"]["yaxis"]["rangemode"] = "normal"
    return drawn


def _in_order(by_source: dict[str, Values]) -> list[str]:
    """Known sources first; a source that gave nothing in the whole range is left out."""
    seen = {source for source, values in by_source.items() if any(values)}
    return [source for source in _SOURCES if source in seen] + sorted(seen - set(_SOURCES))

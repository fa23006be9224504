"""Figures of the hit-tokens page: where prompt tokens were lost, reuse over time, hit tokens of a request."""

from __future__ import annotations

from zoneinfo import ZoneInfo

from controlplane.telemetry.available_figures import Reach, ReachSeries
from dashboard import numbers
from dashboard.charts.base import AMBER, GREEN, GREY, HIT, MISS, SKY, Figure, closed, figure, line, per_second, times
from dashboard.reach_words import CAUSES

STEPS = (
    # (label, level or cause, colour, pattern)
    ("Prompt tokens", "prompt_tokens", GREY, ""),
    ("unknown", "", MISS, "x"),
    ("workload", "", MISS, "/"),
    ("Available", "repeated_tokens", GREEN, ""),
    ("eviction", "", MISS, "\\"),
    ("routing", "", MISS, "."),
    ("Captured by routing", "expected_hit_tokens", SKY, ""),
    ("stale", "", MISS, "-"),
    ("Delivered by workers", "hit_tokens", HIT, ""),
)
"""From the whole to what was delivered: each loss hangs from the level above it."""


def funnel_rows(reach: Reach) -> list[tuple[str, int, int]]:
    """(label, tokens, tokens below it) of each step."""
    rows, level = [], reach.prompt_tokens
    losses = reach.losses
    for label, name, _, _ in STEPS:
        if name:
            level = getattr(reach, name)
            rows.append((label, level, 0))
        else:
            level -= losses[label]
            rows.append((f"− {CAUSES[label].label}", losses[label], level))
    return rows


def funnel_figure(reach: Reach) -> Figure:
    """Bars from left to right: levels begin at zero, losses where the level after them ends."""
    rows = funnel_rows(reach)
    whole = reach.prompt_tokens or 1
    trace: Figure = {
        "type": "bar",
        "orientation": "h",
        "y": [f"{label}  {numbers.percent(tokens / whole)}" for label, tokens, _ in rows],
        "x": [round(tokens / whole * 100, 2) for _, tokens, _ in rows],
        "base": [round(below / whole * 100, 2) for _, _, below in rows],
        "customdata": [numbers.tokens(tokens) for _, tokens, _ in rows],
        "marker": {
            "color": [colour for _, _, colour, _ in STEPS],
            "pattern": {"shape": [shape for _, _, _, shape in STEPS], "solidity": 0.3, "size": 6},
        },
        "hovertemplate": "%{customdata} tokens<extra></extra>",
    }
    return figure(
        [trace],
        y_title="",
        hovermode="closest",
        showlegend=False,
        bargap=0.25,
        xaxis={"type": "linear", "range": [0, 100], "ticksuffix": " %"},
        yaxis={"type": "category", "autorange": "reversed", "automargin": True},
    )


def reach_figure(series: ReachSeries, zone: ZoneInfo) -> Figure:
    """Tokens per second: all, those that came before, what the chosen workers were to hold, what they delivered."""
    x = times(series, zone)
    data = [
        line("Prompt tokens", x, per_second(series, series.prompt_tokens), colour=GREY, dash="dash"),
        line("Available", x, per_second(series, series.repeated_tokens), colour=GREEN, dash="dashdot"),
        line("Captured by routing", x, per_second(series, series.expected_hit_tokens), colour=AMBER, dash="dot"),
        line("Delivered", x, per_second(series, series.hit_tokens), colour=HIT, fill="tozeroy"),
    ]
    return figure([trace | {"hovertemplate": "%{y:.3s} tok/s"} for trace in data], y_title="tokens/s")


def sizes_figure(series: ReachSeries, zone: ZoneInfo) -> Figure:
    """Hit tokens of a request: median and 95th percentile."""
    x = times(series, zone)
    data = [
        line("p50", x, closed(series, series.hit_size_p50), colour=HIT, marker="circle"),
        line("p95", x, closed(series, series.hit_size_p95), colour=HIT, dash="dot"),
    ]
    return figure([trace | {"hovertemplate": "%{y:.3s} tokens"} for trace in data], y_title="hit tokens a request")

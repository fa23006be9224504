"""Figures of eviction churn: KV use against the watermarks, how long blocks live and how soon they come back."""

from __future__ import annotations

from collections.abc import Sequence
from zoneinfo import ZoneInfo

from controlplane.telemetry.eviction_figures import DURATION_BINS_S, Evictions, KvUseLines, binned
from dashboard import numbers
from dashboard.charts.base import (
    AMBER,
    GREEN,
    GREY,
    HIT,
    MISS,
    PINK,
    SKY,
    Figure,
    closed,
    figure,
    line,
    rounded,
    times,
    translucent,
)
from router.contract.snapshot import Watermark

_LOOKS = ((HIT, "solid"), (AMBER, "dash"), (GREEN, "dot"), (PINK, "dashdot"), (SKY, "longdash"), (GREY, "longdashdot"))


def bands_figure(lines: KvUseLines, mark: Watermark | None, zone: ZoneInfo) -> Figure:
    """Mean KV use of the fullest workers in percent; between low and high lies the band of the hysteresis."""
    x = times(lines, zone)
    data = [
        line(worker, x, _percent(closed(lines, values)), colour=colour, dash=dash) | {"hovertemplate": "%{y:.3~r} %"}
        for (worker, values), (colour, dash) in zip(lines.by_worker.items(), _LOOKS, strict=False)
    ]
    drawn = figure(data, y_title="% of KV blocks in use")
    drawn["layout"]["yaxis"]["range"] = [0, 100]
    if mark is not None:
        drawn["layout"]["shapes"] = [
            {
                "type": "rect", "xref": "paper", "x0": 0, "x1": 1, "y0": mark.low * 100, "y1": mark.high * 100,
                "fillcolor": translucent(AMBER), "line": {"width": 0}, "layer": "below",
            },
            _level(mark.high, "solid"),
            _level(mark.low, "dot"),
        ]  # fmt: skip
        drawn["layout"]["annotations"] = [
            _words(mark.high, f"high {mark.high:.0%}: no new prefixes", "bottom"),
            _words(mark.low, f"low {mark.low:.0%}: new prefixes again", "top"),
        ]
    return drawn


def _percent(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else value * 100 for value in values]


def _level(share: float, dash: str) -> Figure:
    y = share * 100
    return {
        "type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y,
        "line": {"color": MISS, "width": 1.2, "dash": dash},
    }  # fmt: skip


def _words(share: float, text: str, anchor: str) -> Figure:
    return {
        "xref": "paper", "x": 1, "xanchor": "right", "y": share * 100, "yanchor": anchor, "showarrow": False,
        "text": text, "font": {"size": 11},
    }  # fmt: skip


def bin_names() -> list[str]:
    """`≤ 1 s`, `≤ 3 s` …, `longer`."""
    return [*(f"≤ {numbers.seconds(end)}" for end in DURATION_BINS_S), "longer"]


def lifetimes_figure(found: Evictions) -> Figure:
    """Two distributions side by side, each in percent of its own blocks."""
    data = [
        _bars("Lifetime: stored to removed", binned(found.lifetime), colour=HIT, pattern=""),
        _bars("Return: removed to stored again", binned(found.restore_gap), colour=MISS, pattern="/"),
    ]
    drawn = figure(data, y_title="% of blocks", barmode="group", bargap=0.15)
    drawn["layout"]["xaxis"] = {"type": "category", "automargin": True}
    return drawn


def _bars(name: str, counts: Sequence[int], *, colour: str, pattern: str) -> Figure:
    total = sum(counts)
    return {
        "type": "bar",
        "name": name,
        "x": bin_names(),
        "y": rounded([100 * count / total if total else None for count in counts]),
        "marker": {"color": colour, "pattern": {"shape": pattern, "solidity": 0.25, "size": 5}},
        "hovertemplate": "%{y:.3~r} %",
    }

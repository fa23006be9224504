"""Figures of a what-if: each scenario's value with its extremes over the seeds, and what was measured as a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dashboard.charts.base import AMBER, GREY, HIT, MISS, Figure, figure

NAME_CHARS_MAX = 22


def what_if_figure(
    scenarios: Sequence[Mapping[str, Any]], key: str, *, factor: float, title: str, measured: float | None
) -> Figure | None:
    """Bars of one figure; None where it is nowhere known."""
    known = [(each["name"], each[key]) for each in scenarios if each.get(key)]
    if not known:
        return None
    names = [_short(name) for name, _ in known]
    bars: Figure = {
        "type": "bar",
        "orientation": "h",
        "name": "simulated",
        "y": names,
        "x": [_number(value["mean"] * factor) for _, value in known],
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [_number((value["high"] - value["mean"]) * factor) for _, value in known],
            "arrayminus": [_number((value["mean"] - value["low"]) * factor) for _, value in known],
            "color": AMBER,
            "thickness": 1.6,
            "width": 5,
        },
        "marker": {"color": [GREY, *[HIT] * (len(known) - 1)]},
        "hovertemplate": "%{x:.4~g}<extra>%{y}</extra>",
    }
    data = [bars]
    if measured is not None:
        data.append(
            {"type": "scatter", "mode": "lines", "name": "measured", "y": names,
             "x": [_number(measured * factor)] * len(names), "hoverinfo": "skip",
             "line": {"color": MISS, "dash": "dash", "width": 2}}
        )  # fmt: skip
    axis = {"title": {"text": title, "standoff": 4}, "rangemode": "tozero", "automargin": True}
    categories = {"type": "category", "autorange": "reversed", "automargin": True}
    return figure(data, y_title="", xaxis=axis, yaxis=categories, hovermode="closest")


def _short(name: str) -> str:
    return name if len(name) <= NAME_CHARS_MAX else f"{name[: NAME_CHARS_MAX - 1]}…"


def _number(value: float) -> float:
    return float(f"{value:.4g}")

"""Figures of a what-if: each scenario's value with its extremes over the seeds, and what was measured as a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dashboard.charts.base import AMBER, GREY, HIT, Figure, figure

NAME_CHARS_MAX = 28


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
        "name": "simulated",
        "x": names,
        "y": [_number(value["mean"] * factor) for _, value in known],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [_number((value["high"] - value["mean"]) * factor) for _, value in known],
            "arrayminus": [_number((value["mean"] - value["low"]) * factor) for _, value in known],
            "color": GREY,
            "thickness": 1.4,
            "width": 6,
        },
        "marker": {
            "color": [GREY, *[HIT] * (len(known) - 1)],
            "pattern": {"shape": ["", *["/"] * (len(known) - 1)], "solidity": 0.2, "size": 6},
        },
        "hovertemplate": "%{y:.4~g}<extra>%{x}</extra>",
    }
    data = [bars]
    if measured is not None:
        line = {"color": AMBER, "dash": "dash", "width": 2}
        data.append(
            {"type": "scatter", "mode": "lines", "name": "measured", "x": names,
             "y": [_number(measured * factor)] * len(names), "line": line, "hoverinfo": "skip"}
        )  # fmt: skip
    axis = {"type": "category", "automargin": True}
    return figure(data, y_title=title, xaxis=axis, hovermode="closest")


def _short(name: str) -> str:
    return name if len(name) <= NAME_CHARS_MAX else f"{name[: NAME_CHARS_MAX - 1]}…"


def _number(value: float) -> float:
    return float(f"{value:.4g}")

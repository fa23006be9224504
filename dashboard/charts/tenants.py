"""Figures of one tenant."""

from __future__ import annotations

from zoneinfo import ZoneInfo

from controlplane.telemetry.figures import Series, Values
from dashboard.charts.base import GREY, MISS, Figure, figure, line, times


def budget_figure(series: Series, rates: Values, limit: float | None, zone: ZoneInfo) -> Figure:
    """Computed prompt tokens a second against the budget of one router."""
    x = times(series, zone)
    data = [line("Computed", x, rates, colour=MISS, fill="tozeroy")]
    if limit is not None:
        flat: Values = [limit] * len(x)
        data.append(line("Budget on each router", x, flat, colour=GREY, dash="dash"))
    return figure([trace | {"hovertemplate": "%{y:.3s} tok/s"} for trace in data], y_title="tokens/s")

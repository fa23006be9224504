"""Figures of hot spots: imbalance, Lorenz curves, queue against match, one prefix over time."""

from __future__ import annotations

from collections.abc import Sequence
from zoneinfo import ZoneInfo

from controlplane.telemetry.hotspot_figures import (
    OTHERS,
    Concentration,
    ImbalanceSeries,
    MatchPoint,
    PrefixSeries,
)
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

HOT_RATIO = 1.5
"""Above this ratio of the busiest worker to the mean a pool is unequal: what routing keeps below it when one prefix is
95 % of the traffic."""
_WORKER_LOOKS = ((HIT, ""), (AMBER, "/"), (GREEN, "."), (PINK, "x"), (SKY, "\\"), (MISS, "-"), (GREY, "+"))
"""Colour and pattern of each worker's part."""
CURVE_POINTS_MAX = 200
RATIO_SHOWN_MIN = 2.0
"""The axis begins at 1, all equal, and reaches this at least."""


def imbalance_figure(series: ImbalanceSeries, zone: ZoneInfo) -> Figure:
    """Busiest worker ÷ mean, beside the ratio from which it is a hot spot."""
    trace = line(
        "Busiest worker ÷ mean", times(series, zone), closed(series, series.ratio), colour=HIT, marker="circle"
    )
    drawn = figure([trace | {"hovertemplate": "%{y:.3~r} ×"}], y_title="× mean")
    drawn["layout"]["shapes"] = [
        {
            "type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": HOT_RATIO, "y1": HOT_RATIO,
            "line": {"color": MISS, "width": 1.2, "dash": "dash"},
        }
    ]  # fmt: skip
    drawn["layout"]["annotations"] = [
        {
            "xref": "paper", "x": 1, "xanchor": "right", "y": HOT_RATIO, "yanchor": "bottom", "showarrow": False,
            "text": f"hot spot above {HOT_RATIO} ×", "font": {"size": 11},
        }
    ]  # fmt: skip
    drawn["layout"]["showlegend"] = False
    highest = max((value for value in series.ratio if value is not None), default=1.0)
    drawn["layout"]["yaxis"]["range"] = [1.0, max(RATIO_SHOWN_MIN, highest * 1.1)]
    return drawn


def lorenz_figure(found: Concentration, *, parts: str, amount: str) -> Figure:
    """Share of the parts against the share of the amount; the diagonal is "all equal"."""
    curve = found.curve()
    step = max(1, len(curve) // CURVE_POINTS_MAX)
    points = [*curve[:-1:step], curve[-1]]
    x, y = ([100 * point[axis] for point in points] for axis in (0, 1))
    data = [
        line("All equal", ["0", "100"], [0.0, 100.0], colour=GREY, dash="dash")
        | {"x": [0, 100], "hoverinfo": "skip"},
        line(f"{amount} by {parts}", [], [], colour=HIT, marker="circle" if len(points) < 40 else "")
        | {
            "x": rounded([*x]), "y": rounded([*y]), "fill": "tonexty", "fillcolor": translucent(HIT),
            "hovertemplate": f"%{{x:.3~r}} % of {parts} have %{{y:.3~r}} %<extra></extra>",
        },
    ]  # fmt: skip
    drawn = figure(data, y_title=f"% of {amount}", hovermode="closest")
    drawn["layout"]["xaxis"] = {"title": {"text": f"% of {parts}, least first"}, "range": [0, 100], "automargin": True}
    drawn["layout"]["yaxis"] |= {"range": [0, 101]}
    return drawn


def match_figure(points: Sequence[MatchPoint]) -> Figure:
    """Each sampled decision: what the chosen worker held against its queue, joined to the best match it left."""
    left = [point for point in points if point.left_the_best]
    joined: Figure = {
        "type": "scatter", "mode": "lines", "name": "left for", "showlegend": False, "hoverinfo": "skip",
        "x": [x for point in left for x in (point.best_matched_tokens, point.matched_tokens, None)],
        "y": rounded([y for point in left for y in (point.best_queue_ms, point.queue_ms, None)]),
        "line": {"color": GREY, "width": 0.8},
    }  # fmt: skip
    best = _markers(
        "Best match, left for another",
        [
            (point.best_matched_tokens, point.best_queue_ms, f"{point.best_worker}, {point.request_id}")
            for point in left
        ],
        colour=MISS,
        symbol="x",
    )
    chosen = _markers(
        "Chosen worker",
        [(point.matched_tokens, point.queue_ms, f"{point.worker}, {point.request_id}") for point in points],
        colour=HIT,
        symbol="circle",
    )
    drawn = figure([joined, best, chosen], y_title="queue, ms", hovermode="closest")
    drawn["layout"]["xaxis"] = {"title": {"text": "matched tokens"}, "rangemode": "tozero", "automargin": True}
    return drawn


def _markers(name: str, points: Sequence[tuple[float, float, str]], *, colour: str, symbol: str) -> Figure:
    return {
        "type": "scatter", "mode": "markers", "name": name,
        "x": [x for x, _, _ in points],
        "y": rounded([y for _, y, _ in points]),
        "text": [text for _, _, text in points],
        "marker": {"color": colour, "symbol": symbol, "size": 7, "opacity": 0.75},
        "hovertemplate": "%{text}<br>%{x:,} tokens held, %{y:,.3~r} ms queue<extra></extra>",
    }  # fmt: skip


def prefix_figure(series: PrefixSeries, zone: ZoneInfo) -> Figure:
    """Requests a second of one prefix, stacked by worker."""
    x = times(series, zone)
    data: list[Figure] = []
    for place, (worker, values) in enumerate(series.by_worker.items()):
        colour, pattern = _WORKER_LOOKS[-1] if worker == OTHERS else _WORKER_LOOKS[place % len(_WORKER_LOOKS)]
        data.append(
            {
                "type": "bar", "name": worker, "x": x, "y": rounded(closed(series, values)),
                "marker": {"color": colour, "pattern": {"shape": pattern, "solidity": 0.25, "size": 5}},
                "hovertemplate": "%{y:.3~r} req/s",
            }
        )  # fmt: skip
    return figure(data, y_title="requests/s", barmode="stack", bargap=0.08)

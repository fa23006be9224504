"""Figures of the TTFT page: the shift of each cohort with its interval, hits against misses by prompt length."""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.telemetry.cohorts import Cohort, LengthBand
from controlplane.telemetry.shift import Shift
from dashboard.charts.base import GREEN, GREY, HIT, MISS, Figure, figure, rounded
from dashboard.cohort_words import LENGTHS, cohort_words, tell_models_apart

COHORTS_DRAWN = 20
_TOLD = {"sooner": ("Sooner", GREEN, "triangle-left"), "later": ("Later", MISS, "triangle-right"),
         "same": ("No difference shown", GREY, "circle")}  # fmt: skip
WHOLE = "All matched cohorts"


def shifts_figure(cohorts: Sequence[Cohort], overall: Shift | None) -> Figure:
    """A forest plot: a mark for the shift of each cohort, a line for its interval, the whole on top."""
    rows = [(WHOLE, overall)] if overall else []
    apart = tell_models_apart(cohorts)
    told = [(cohort_words(each, with_model=apart), each.shift) for each in cohorts if each.shift is not None]
    rows += told[:COHORTS_DRAWN]
    data = []
    for verdict, (name, colour, symbol) in _TOLD.items():
        own = [(words, shift) for words, shift in rows if shift.told == verdict]
        if own:
            data.append(_marks(name, own, colour=colour, symbol=symbol))
    return figure(
        data,
        y_title="",
        hovermode="closest",
        xaxis={"type": "linear", "title": {"text": "difference in ms", "standoff": 6}, "automargin": True,
               "zeroline": True, "zerolinewidth": 2, "rangemode": "tozero"},
        yaxis={"type": "category", "autorange": "reversed", "automargin": True,
               "categoryorder": "array", "categoryarray": [words for words, _ in rows]},
    )  # fmt: skip


def _marks(name: str, rows: Sequence[tuple[str, Shift]], *, colour: str, symbol: str) -> Figure:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": rounded([shift.ms for _, shift in rows]),
        "y": [words for words, _ in rows],
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": rounded([shift.high_ms - shift.ms for _, shift in rows]),
            "arrayminus": rounded([shift.ms - shift.low_ms for _, shift in rows]),
            "color": colour,
            "thickness": 1.6,
            "width": 4,
        },
        "marker": {"color": colour, "symbol": symbol, "size": 10},
        "hovertemplate": "%{y}<br>%{x:.3~r} ms<extra></extra>",
    }


def lengths_figure(bands: Sequence[LengthBand]) -> Figure:
    """Medians of hits beside those of misses, by prompt length."""
    shown = [band for band in bands if band.hit_count or band.miss_count]
    x = [LENGTHS[band.length] for band in shown]
    data: list[Figure] = [
        {
            "type": "bar",
            "name": name,
            "x": x,
            "y": rounded([getattr(band, f"{name.lower()}_ms") for band in shown]),
            "marker": {"color": colour, "pattern": {"shape": shape, "solidity": 0.25, "size": 5}},
            "hovertemplate": "%{y:,.3~r} ms",
        }
        for name, colour, shape in (("Hit", HIT, ""), ("Miss", MISS, "/"))
    ]
    return figure(
        data,
        y_title="TTFT p50, ms",
        barmode="group",
        xaxis={"type": "category", "title": {"text": "prompt tokens", "standoff": 6}, "automargin": True},
    )

"""Rows of a sweep as Plotly figures. Colours are names of the page's own (`--p0`), so that they follow its theme.

A policy has a colour, a mark and a dash of its own wherever it is drawn: it is told apart without colour, too.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.fleet.policies import ORACLE, POLICIES
from simulator.fleet.table import Row

Json = dict[str, Any]  # Any: a Plotly figure
MARKS = (
    ("circle", "●"), ("square", "■"), ("diamond", "◆"), ("triangle-up", "▲"), ("triangle-down", "▼"), ("cross", "✚"),
    ("x", "✖"), ("star", "★"), ("hexagon", "⬢"), ("pentagon", "⬟"), ("bowtie", "⧓"), ("circle-open", "○"),
    ("square-open", "□"), ("diamond-open", "◇"),
)  # fmt: skip
"""Plotly's name and the character that looks like it."""
DASHES = ("solid", "dot", "dash", "dashdot")
OWN = "tidemark"
BY_LOAD_HEIGHT_PX, SCATTER_HEIGHT_PX = 320, 320
HEAT_ROW_PX, HEAT_FRAME_PX = 26, 150


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart and the words that go with it."""

    id: str
    title: str
    says: str
    """What is drawn, in one sentence: what someone who cannot see it is told."""
    height_px: int
    plot: Json


def place_of(policy: str) -> int:
    """Its colour and mark, the same in every report."""
    return list(POLICIES).index(policy) % len(MARKS)


def mark_of(policy: str) -> str:
    return MARKS[place_of(policy)][1]


def figures(rows: Sequence[Row]) -> list[Figure]:
    traces = list(dict.fromkeys(row.trace for row in rows))
    drawn = [_heat(rows)]
    for trace in traces:
        own = [row for row in rows if row.trace == trace]
        drawn += [_by_load(trace, own, each) for each in BY_LOAD]
    return drawn + [_hits(trace, [row for row in rows if row.trace == trace]) for trace in traces]


def plain(text: str) -> str:
    """Plotly reads markup in its labels; a trace's path has none."""
    return html.escape(text, quote=False)


def setup_of(row: Row) -> str:
    return f"{row.trace} {row.workers} × {row.load:g}"


def _heat(rows: Sequence[Row]) -> Figure:
    with_oracle = any(row.goodput_of_oracle is not None for row in rows)
    cell: Callable[[Row], float | None] = _of_oracle if with_oracle else _good_share
    setups = list(dict.fromkeys(setup_of(row) for row in rows))
    policies = _policies(rows)
    values = {(row.policy, setup_of(row)): cell(row) for row in rows}
    grid = [[values.get((policy, setup)) for policy in policies] for setup in setups]
    title = "Goodput ÷ the greedy oracle's" if with_oracle else "Share of good requests"
    heat: Json = {
        "type": "heatmap", "x": policies, "y": [plain(setup) for setup in setups], "z": grid,
        "zmin": 0, "zmax": 1.2 if with_oracle else 1, "colorscale": "Cividis", "xgap": 1, "ygap": 1,
        "texttemplate": "%{z:.2f}", "hovertemplate": "%{y}<br>%{x}: %{z:.2f}<extra></extra>",
        "showscale": False,
    }  # fmt: skip
    layout = {
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "xaxis": {"title": {"text": "policy", "standoff": 8}, "automargin": True, "tickangle": -40},
        "yaxis": {
            "title": {"text": "trace, workers × load", "standoff": 16},
            "automargin": True,
            "autorange": "reversed",
        },
    }
    says = "From dark blue for none to yellow for the most; every cell has its number."
    says += (
        " A set-up without cells has nothing to compare with: the oracle served none in time." if with_oracle else ""
    )
    return Figure("heat", title, says, HEAT_FRAME_PX + HEAT_ROW_PX * len(setups), {"data": [heat], "layout": layout})


def _of_oracle(row: Row) -> float | None:
    return row.goodput_of_oracle


def _good_share(row: Row) -> float | None:
    return row.good_share


@dataclass(frozen=True, slots=True)
class _Measure:
    id: str
    title: str
    axis: str
    value: Callable[[Row], float | None]
    shown: str
    """Plotly's number format."""
    logarithmic: bool = False


BY_LOAD = (
    _Measure("ttft", "TTFT p95", "TTFT p95 (s)", lambda row: row.ttft_p95_s, ".2f", logarithmic=True),
    _Measure("goodput", "Goodput", "good requests (1/s)", lambda row: row.goodput_per_s, ".2f"),
)


def _by_load(trace: str, rows: Sequence[Row], measure: _Measure) -> Figure:
    """Load by load for each number of workers; a line joins the loads of one pool."""
    order = {(row.workers, row.load): None for row in sorted(rows, key=lambda row: (row.workers, row.load))}
    lines = [
        _line(policy, workers, [row for row in rows if (row.policy, row.workers) == (policy, workers)], measure)
        for policy in _policies(rows)
        for workers in dict.fromkeys(workers for workers, _ in order)
    ]
    layout = {
        "margin": {"l": 8, "r": 8, "t": 8, "b": 64},
        "showlegend": False,
        "hovermode": "closest",
        "xaxis": {"title": {"text": "load (share of the pool's capacity), workers"}, "automargin": True,
                  "type": "multicategory"},
        "yaxis": {"title": {"text": measure.axis}, "automargin": True,
                  **({"type": "log", "dtick": 1, "minor": {"dtick": "D1"}} if measure.logarithmic
                     else {"rangemode": "tozero"})},
    }  # fmt: skip
    says = f"{measure.title} of each policy on {trace}, by load and number of workers."
    title = f"{measure.title} by load: {trace}"
    return Figure(f"{measure.id}-{trace}", title, says, BY_LOAD_HEIGHT_PX, {"data": lines, "layout": layout})


def _line(policy: str, workers: int, rows: Sequence[Row], measure: _Measure) -> Json:
    ordered = sorted(rows, key=lambda row: row.load)
    return {
        "type": "scatter", "mode": "lines+markers", "name": policy,
        "x": [[f"{workers} workers"] * len(ordered), [f"{row.load:g}" for row in ordered]],
        "y": [measure.value(row) for row in ordered],
        "line": {"color": _colour(policy), "width": 3 if policy == OWN else 1.5,
                 "dash": DASHES[place_of(policy) % len(DASHES)]},
        "marker": {"color": _colour(policy), "symbol": MARKS[place_of(policy)][0], "size": 10 if policy == OWN else 8},
        "hovertemplate": f"{policy}: %{{y:{measure.shown}}}<extra>{workers} workers</extra>",
    }  # fmt: skip


def _hits(trace: str, rows: Sequence[Row]) -> Figure:
    """One mark for each policy and set-up that measured hits."""
    marks = []
    for policy in _policies(rows):
        own = [row for row in rows if row.policy == policy and row.hit_token_share is not None]
        marks.append({
            "type": "scatter", "mode": "markers", "name": policy,
            "x": [100 * (row.hit_token_share or 0.0) for row in own],
            "y": [row.evicted_blocks_per_min for row in own],
            "text": [f"{row.workers} workers × {row.load:g}" for row in own],
            "marker": {"color": _colour(policy), "symbol": MARKS[place_of(policy)][0],
                       "size": 12 if policy == OWN else 9, "opacity": 0.85},
            "hovertemplate": f"{policy}, %{{text}}<br>%{{x:.1f}} % hit, %{{y:.0f}} evicted/min<extra></extra>",
        })  # fmt: skip
    layout = {
        "margin": {"l": 8, "r": 8, "t": 8, "b": 64},
        "showlegend": False,
        "hovermode": "closest",
        "xaxis": {"title": {"text": "hit tokens (%)"}, "automargin": True},
        "yaxis": {"title": {"text": "evicted blocks (1/min a worker)"}, "automargin": True, "rangemode": "tozero"},
    }
    says = f"Hit tokens against evicted blocks on {trace}: right is more reuse, low is less churn."
    return Figure(f"hits-{trace}", f"Hits against evictions: {trace}", says, SCATTER_HEIGHT_PX,
                  {"data": marks, "layout": layout})  # fmt: skip


def _policies(rows: Sequence[Row]) -> list[str]:
    """Ours first, the oracle last."""
    names = dict.fromkeys(row.policy for row in rows)
    return sorted(names, key=lambda name: (name != OWN, name == ORACLE))


def _colour(policy: str) -> str:
    return f"--p{place_of(policy)}"

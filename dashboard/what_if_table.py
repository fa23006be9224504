"""An answer as people read it: scenarios × figures, differences with their certainty, how far the simulation is off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dashboard import numbers
from dashboard.tables import Cell as Value
from dashboard.tables import Table

Answer = Mapping[str, Any]
FAR_POINTS = 0.1
FAR_TIMES = 2.0
"""Simulated hits so far from the measured ones, or a TTFT so many times as long: levels are then not to be trusted."""


@dataclass(frozen=True, slots=True)
class Figure:
    key: str
    label: str
    kind: str
    """`share`, `seconds`, `count` or `money`."""
    more_is_better: bool
    unit: str = ""


FIGURES = (
    Figure("hit_token_share", "Hit tokens", "share", True),
    Figure("ttft_p50_s", "TTFT p50", "seconds", False),
    Figure("ttft_p95_s", "TTFT p95", "seconds", False),
    Figure("goodput_share", "Goodput", "share", True),
    Figure("evictions_per_min", "Evictions", "count", False, "blocks/min"),
    Figure("gpu_seconds_prefill", "Prefill", "count", False, "GPU-s"),
)
COST = Figure("cost_per_h", "Cost", "money", False)


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    spread: str = ""
    """Extremes over the seeds; "" where there are none, or they are the same."""
    difference: str = ""
    """Against the fleet as it is."""
    certain: bool = False
    """Whether the extremes of the two do not overlap."""
    better: bool = False
    best: bool = False
    """Of all scenarios, and certainly better than the fleet as it is."""


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    workers: int | None
    note: str
    cells: list[Cell]
    is_base: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    figures: list[Figure]
    measured: list[Cell]
    rows: list[Row]
    accuracy: list[str] = field(default_factory=list)
    far: bool = False
    """From what was measured: read the differences, not the levels."""
    sampled: str = ""
    runs: int = 0


def comparison_of(answer: Answer, *, currency: str) -> Comparison:
    scenarios = answer["scenarios"]
    figures = [*FIGURES, *([COST] if any(each.get("cost_per_h") is not None for each in scenarios) else [])]
    columns = [_column(figure, scenarios, currency) for figure in figures]
    rows = [
        Row(each["name"], each.get("workers"), each.get("note", ""), [column[at] for column in columns], at == 0)
        for at, each in enumerate(scenarios)
    ]
    measured = [Cell(written(figure, answer["measured"].get(figure.key), currency)) for figure in figures]
    words, far = accuracy_of(answer)
    return Comparison(figures, measured, rows, words, far, _sampled(answer), len(answer["seeds"]))


def accuracy_of(answer: Answer) -> tuple[list[str], bool]:
    """What was simulated beside what was measured, in sentences; whether they are far apart."""
    base, measured = answer["scenarios"][0], answer["measured"]
    sentences, far = [], False
    hits, hits_measured = _mean(base["hit_token_share"]), measured["hit_token_share"]
    if hits is not None and hits_measured is not None:
        off = hits - hits_measured
        far = abs(off) > FAR_POINTS
        sentences.append(
            f"Simulated {numbers.percent(hits)} hits, measured {numbers.percent(hits_measured)}: {_points_off(off)}."
        )
    ttft, ttft_measured = _mean(base["ttft_p95_s"]), measured["ttft_p95_s"]
    if ttft is not None and ttft_measured:
        ratio = ttft / ttft_measured
        far = far or not 1 / FAR_TIMES <= ratio <= FAR_TIMES
        sentences.append(
            f"Simulated TTFT p95 {numbers.milliseconds(ttft * 1000)}, measured"
            f" {numbers.milliseconds(ttft_measured * 1000)}: {_share_off(ratio - 1)}."
        )
    return sentences or ["Nothing was measured that the simulation can be compared with."], far


def written(figure: Figure, value: float | None, currency: str = "") -> str:
    if value is None:
        return numbers.UNKNOWN
    if figure.kind == "share":
        return numbers.percent(value)
    if figure.kind == "seconds":
        return numbers.milliseconds(value * 1000)
    if figure.kind == "money":
        return f"{currency} {value:,.2f}/h"
    return numbers.count(round(value, 1))


def csv_of(answer: Answer) -> Table:
    """One line a scenario and figure, in full digits and base units."""
    lines: list[list[Value]] = []
    for figure in FIGURES:
        lines.append(["measured", figure.key, answer["measured"].get(figure.key), None, None])
    for scenario in answer["scenarios"]:
        for key, value in scenario.items():
            if isinstance(value, Mapping):
                lines.append([scenario["name"], key, value["mean"], value["low"], value["high"]])
            elif isinstance(value, int | float):
                lines.append([scenario["name"], key, value, None, None])
    return Table(["scenario", "figure", "mean", "low", "high"], lines)


def _column(figure: Figure, scenarios: Sequence[Answer], currency: str) -> list[Cell]:
    values = [_interval(each.get(figure.key)) for each in scenarios]
    base = values[0]
    judged = [_judged(figure, each, value, base) for each, value in zip(scenarios, values, strict=True)]
    winners = [
        value[0] for value, (_, certain, better) in zip(values, judged, strict=True) if value and certain and better
    ]
    top = (max(winners) if figure.more_is_better else min(winners)) if winners else None
    cells = []
    for at, (value, (words, certain, better)) in enumerate(zip(values, judged, strict=True)):
        if value is None:
            cells.append(Cell(numbers.UNKNOWN))
            continue
        mean, low, high = value
        spread = f"{written(figure, low, currency)} – {written(figure, high, currency)}"
        cells.append(
            Cell(
                written(figure, mean, currency), spread if written(figure, low) != written(figure, high) else "",
                words if at else "", certain, better, bool(at) and certain and better and mean == top,
            )
        )  # fmt: skip
    return cells


Three = tuple[float, float, float]


def _interval(value: Any) -> Three | None:
    if value is None:
        return None
    if isinstance(value, Mapping):
        return float(value["mean"]), float(value["low"]), float(value["high"])
    return float(value), float(value), float(value)


def _judged(figure: Figure, scenario: Answer, value: Three | None, base: Three | None) -> tuple[str, bool, bool]:
    """(difference in words, whether it is certain, whether it is for the better)."""
    if value is None or base is None:
        return "", False, False
    difference = value[0] - base[0]
    certain = value[1] > base[2] or value[2] < base[1]
    saved = scenario.get("gpu_seconds_saved_against_as_it_is") if figure.key == "gpu_seconds_prefill" else None
    if saved:
        # Each seed beside the same seed: sharper than two ranges side by side.
        certain = saved["low"] > 0 or saved["high"] < 0
    words = _difference(figure, difference)
    return words, certain and words != NO_CHANGE, (difference > 0) == figure.more_is_better


NO_CHANGE = "no change"


def _difference(figure: Figure, value: float) -> str:
    if figure.kind == "share":
        text = f"{value * 100:+.1f} points"
        zero = "+0.0 points", "-0.0 points"
    elif figure.kind == "seconds":
        text = numbers.difference(value * 1000)
        zero = ("±0 ms", "")
    else:
        text = (
            f"{value:+,.2f}"
            if figure.kind == "money"
            else f"{'+' if value > 0 else ''}{numbers.count(round(value, 1))}"
        )
        zero = ("+0.00", "0")
    return NO_CHANGE if text in zero else text.replace("-", "−")


def _mean(value: Any) -> float | None:
    return None if value is None else float(value["mean"])


def _points_off(off: float) -> str:
    if abs(off) < 0.0005:
        return "the same"
    return f"{abs(off) * 100:.1f} points too {'many' if off > 0 else 'few'}"


def _share_off(off: float) -> str:
    return "the same" if abs(off) < 0.005 else f"{abs(off) * 100:.0f} % too {'long' if off > 0 else 'short'}"


def _sampled(answer: Answer) -> str:
    sampled = answer["sampled"]
    lost = f" {sampled['dropped']:,} recorded requests were lost on their way." if sampled.get("dropped") else ""
    return f"{sampled['scaled']}{lost}"

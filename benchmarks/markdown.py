"""The report as Markdown, for a page or a change's description."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from benchmarks.report import Measure, Report, row_of, tally

VERDICTS: Final = {"ok": "yes", "MISSED": "**no**"}


def markdown(report: Report, about: Mapping[str, Any], previous: Mapping[str, float]) -> str:  # Any: JSON
    """One row a measure, with the last report's figure where there is one; below it what could not be measured."""
    compared = any(measure.name in previous for measure in report.measures)
    header = ["measure", "ours", *["before"] * compared, "bar", "met", "others (ours ÷ theirs)"]
    rows = [_cells(measure, previous, compared) for measure in report.measures]
    where = ", ".join(str(about[name]) for name in ("commit", "python", "router_code") if name in about)
    machine = ", ".join(f"{name} {value}" for name, value in about.get("machine", {}).items())
    lines = [
        f"{where}; {machine}; median of {report.rounds} rounds.",
        "",
        _line(header),
        _line(["---"] * len(header)),
        *map(_line, rows),
        "",
        tally(report) + ".",
    ]
    whys = [f"- {_escaped(measure.name)}: {_escaped(measure.why)}" for measure in report.measures if measure.why]
    whys += [f"- not measured, {peer}: {_escaped(why)}" for peer, why in report.skipped.items()]
    return "\n".join([*lines, *([""] if whys else []), *whys]) + "\n"


def _cells(measure: Measure, previous: Mapping[str, float], compared: bool) -> list[str]:
    name, ours, before, bar, verdict, peers = row_of(measure, previous)
    return [name, ours, *[before] * compared, bar, VERDICTS.get(verdict, verdict), peers]


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(map(_escaped, cells)) + " |"


def _escaped(text: str) -> str:
    """On one line, in one cell."""
    return " ".join(text.split()).replace("|", "\\|")

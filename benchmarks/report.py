"""What `make bench` found: measures with their bars, as one table and as `benchmarks/out/latest.json`.

A measure is met (true), missed (false) or, where something it needs could not be had, open (null, and `why`).
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BEST_PEER = "best peer"


@dataclass(frozen=True)
class Bar:
    """Ours must be at most (or at least) `value` times the peer named in `against`; without one, `value` itself."""

    value: float
    against: str = ""
    at_least: bool = False
    note: str = ""

    def text(self) -> str:
        sign = "≥" if self.at_least else "≤"
        return f"{sign} {_number(self.value)}" + (f" × {self.against}" if self.against else "") + self.note

    def met(self, ours: float, peers: Mapping[str, float]) -> bool | None:
        limit = self.value
        if self.against:
            other = min(peers.values(), default=None) if self.against == BEST_PEER else peers.get(self.against)
            if other is None:
                return None
            limit *= other
        return ours >= limit if self.at_least else ours <= limit


@dataclass(frozen=True)
class Measure:
    name: str
    unit: str
    ours: float | None
    peers: Mapping[str, float] = field(default_factory=dict)
    bars: Sequence[Bar] = ()
    why: str = ""
    """Why it is open, or what makes the figure worthless."""
    failed: bool = False
    """Ours answered with errors: missed, whatever the figure."""

    @property
    def ok(self) -> bool | None:
        if self.failed:
            return False
        if self.ours is None:
            return None
        verdicts = [bar.met(self.ours, self.peers) for bar in self.bars]
        if False in verdicts:
            return False
        return None if None in verdicts or not verdicts else True

    def ratios(self) -> dict[str, float]:
        """Ours ÷ each peer's."""
        if self.ours is None:
            return {}
        return {name: round(self.ours / value, 3) for name, value in self.peers.items() if value}

    def as_json(self) -> dict[str, Any]:  # Any: JSON
        return {
            "name": self.name,
            "unit": self.unit,
            "ours": self.ours,
            "peers": dict(self.peers),
            "ratio": self.ratios(),
            "bar": [bar.text() for bar in self.bars],
            "ok": self.ok,
            "why": self.why,
        }


class Report:
    """Collects what the groups of measures find."""

    def __init__(self, *, rounds: int) -> None:
        self.rounds = rounds
        self.measures: list[Measure] = []
        self.skipped: dict[str, str] = {}
        """Peer → why it could not be measured."""
        self.versions: dict[str, str] = {}
        self.notes: dict[str, Any] = {}  # Any: figures without a bar, of several shapes
        self.seconds: dict[str, float] = {}
        """How long each group took."""

    def add(
        self,
        name: str,
        unit: str,
        ours: float | None,
        *,
        peers: Mapping[str, float | None] | None = None,
        bars: Iterable[Bar] = (),
        why: str = "",
        failed: bool = False,
    ) -> None:
        bars = tuple(bars)
        known = {peer: _rounded(value) for peer, value in (peers or {}).items() if value is not None}
        missing = [f"{bar.against}: {self._absence(bar.against)}" for bar in bars if _lacks(bar, known)]
        reasons = [why] * bool(why) + missing
        self.measures.append(
            Measure(name, unit, None if ours is None else _rounded(ours), known, bars, "; ".join(reasons), failed)
        )

    def failed_group(self, group: str, why: str) -> None:
        self.add(group, "", None, why=why)

    def _absence(self, peer: str) -> str:
        return next((why for name, why in self.skipped.items() if name.startswith(peer)), "not measured")

    def as_json(self, about: Mapping[str, Any]) -> dict[str, Any]:  # Any: JSON
        return {
            **about,
            "rounds": self.rounds,
            "seconds": self.seconds,
            "versions": self.versions,
            "measures": [measure.as_json() for measure in self.measures],
            "skipped": self.skipped,
            "notes": self.notes,
        }


def median(values: Iterable[float]) -> float:
    return float(statistics.median(values))


def read_previous(path: Path) -> dict[str, float]:
    """Ours by measure, of the last report; {} when there is none that can be read."""
    try:
        measures = json.loads(path.read_text())["measures"]
        return {measure["name"]: measure["ours"] for measure in measures if measure["ours"] is not None}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def table(report: Report, previous: Mapping[str, float]) -> str:
    """One line a measure: ours, its change against the last report, the bars, the verdict, peers with ours ÷ theirs."""
    rows = [row_of(measure, previous) for measure in report.measures]
    header = ("measure", "ours", "before", "bar", "", "peers (ours ÷ theirs)")
    widths = [max(len(row[at]) for row in [header, *rows]) for at in range(len(header) - 1)]
    lines = ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
             for row in [header, *rows]]  # fmt: skip
    lines += [f"  {measure.name}: {measure.why}" for measure in report.measures if measure.why]
    lines += [f"not measured, {peer}: {why}" for peer, why in report.skipped.items()]
    return "\n".join([*lines, tally(report)])


def tally(report: Report) -> str:
    verdicts = [measure.ok for measure in report.measures if measure.bars or measure.ours is None]
    return f"{verdicts.count(True)} met, {verdicts.count(False)} missed, {verdicts.count(None)} open"


def row_of(measure: Measure, previous: Mapping[str, float]) -> tuple[str, str, str, str, str, str]:
    """Name, ours, before, bars, verdict and peers, as text."""
    ratios = measure.ratios()
    peers = ", ".join(
        f"{name} {_number(value)}" + (f" ({ratios[name]:.2f})" if name in ratios else "")
        for name, value in measure.peers.items()
    )
    before, verdict = previous.get(measure.name), {True: "ok", False: "MISSED", None: "open" if measure.bars else ""}
    return (
        measure.name,
        "–" if measure.ours is None else f"{_number(measure.ours)} {measure.unit}",
        "" if before is None else _number(before),
        ", ".join(bar.text() for bar in measure.bars),
        verdict[measure.ok],
        peers,
    )


def _lacks(bar: Bar, peers: Mapping[str, float]) -> bool:
    return bool(bar.against) and (not peers if bar.against == BEST_PEER else bar.against not in peers)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}") if abs(value) < 10_000 else float(round(value))


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"

"""Results of a sweep as rows, text, Markdown and JSON. A row is the mean over the seeds of one set-up and policy."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

from simulator.fleet.measure import RunResult
from simulator.fleet.policies import ORACLE
from simulator.fleet.sweep import Case


@dataclass(frozen=True, slots=True)
class Row:
    trace: str
    workers: int
    load: float
    policy: str
    seeds: int
    hit_token_share: float | None
    ttft_mean_s: float | None
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    goodput_per_s: float
    goodput_spread_per_s: float
    """Greatest less least over the seeds."""
    goodput_of_oracle: float | None
    """Mean over the seeds of the ratio to the oracle's run of the same seed; None without one, or where it is 0."""
    good_share: float
    """Of the measured requests."""
    prefill_max_over_mean: float | None
    evicted_blocks_per_min: float
    spills: float
    preemptions: float
    unfinished: float
    busy_share: float


@dataclass(frozen=True, slots=True)
class Overall:
    """A policy over all set-ups."""

    policy: str
    goodput_of_oracle_mean: float | None
    goodput_of_oracle_worst: float | None
    setups: int


def rows_of(results: dict[Case, RunResult]) -> list[Row]:
    groups: dict[tuple[str, int, float, str], list[Case]] = {}
    for case in results:
        groups.setdefault((*case.setup, case.policy), []).append(case)
    return [_row(cases, results) for cases in groups.values()]


def overall(rows: Sequence[Row]) -> list[Overall]:
    """Best mean first; policies without an oracle beside them last."""
    names = list(dict.fromkeys(row.policy for row in rows))
    summary = []
    for name in names:
        ratios = [row.goodput_of_oracle for row in rows if row.policy == name and row.goodput_of_oracle is not None]
        mean, worst = (statistics.mean(ratios), min(ratios)) if ratios else (None, None)
        summary.append(Overall(name, mean, worst, len(ratios)))
    return sorted(summary, key=lambda each: -(each.goodput_of_oracle_mean or 0.0))


def as_text(rows: Sequence[Row]) -> str:
    """Fixed-width columns, a blank line between set-ups."""
    table = [_HEADS, *([*_setup(row), *_cells(row)] for row in rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(_HEADS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table]
    for index in range(len(rows) - 1, 0, -1):
        if _setup(rows[index]) != _setup(rows[index - 1]):
            lines.insert(index + 1, "")
    return "\n".join([*lines, "", *(_overall_line(each) for each in overall(rows))])


def as_markdown(rows: Sequence[Row]) -> str:
    """A table for each figure, policies by set-ups, then the policies over all set-ups."""
    parts = [_matrix(title, rows, cell) for title, cell in MATRICES.items()]
    heads = ("policy", "goodput ÷ oracle, mean", "worst", "set-ups")
    parts.append(_markdown(heads, map(_overall_cells, overall(rows))))
    return "\n\n".join(parts) + "\n"


def as_json(rows: Sequence[Row], results: dict[Case, RunResult]) -> dict[str, object]:
    return {
        "rows": [asdict(row) for row in rows],
        "overall": [asdict(each) for each in overall(rows)],
        "runs": [asdict(case) | result.as_dict() for case, result in results.items()],
    }


def _row(cases: Sequence[Case], results: dict[Case, RunResult]) -> Row:
    runs = [results[case] for case in cases]
    goodputs = [run.goodput_per_s for run in runs]

    def mean(figure: Callable[[RunResult], float | None]) -> float | None:
        known = [value for run in runs if (value := figure(run)) is not None]
        return statistics.mean(known) if known else None

    first = cases[0]
    return Row(
        trace=first.trace,
        workers=first.workers,
        load=first.load,
        policy=first.policy,
        seeds=len(cases),
        hit_token_share=mean(lambda run: run.hit_token_share),
        ttft_mean_s=mean(lambda run: run.ttft_mean_s),
        ttft_p50_s=mean(lambda run: run.ttft_p50_s),
        ttft_p95_s=mean(lambda run: run.ttft_p95_s),
        goodput_per_s=statistics.mean(goodputs),
        goodput_spread_per_s=max(goodputs) - min(goodputs),
        goodput_of_oracle=_of_oracle(cases, results),
        good_share=sum(run.good for run in runs) / max(1, sum(run.measured for run in runs)),
        prefill_max_over_mean=mean(lambda run: run.prefill_max_over_mean),
        evicted_blocks_per_min=statistics.mean(run.evicted_blocks_per_min for run in runs),
        spills=statistics.mean(run.spills for run in runs),
        preemptions=statistics.mean(run.preemptions for run in runs),
        unfinished=statistics.mean(run.unfinished for run in runs),
        busy_share=statistics.mean(run.busy_share for run in runs),
    )


def _of_oracle(cases: Sequence[Case], results: dict[Case, RunResult]) -> float | None:
    by_seed = {(case.setup, case.seed): run for case, run in results.items() if case.policy == ORACLE}
    ratios = [
        results[case].goodput_per_s / oracle.goodput_per_s
        for case in cases
        if (oracle := by_seed.get((case.setup, case.seed))) is not None and oracle.goodput_per_s
    ]
    return statistics.mean(ratios) if ratios else None


_HEADS = (
    "trace", "workers", "load", "policy", "goodput/s", "÷ oracle", "good %", "hit %", "TTFT mean", "p50", "p95",
    "max/mean", "evicted/min", "spills", "preempted", "unfinished",
)  # fmt: skip


def _setup(row: Row) -> tuple[str, str, str]:
    return row.trace, str(row.workers), f"{row.load:g}"


def _cells(row: Row) -> list[str]:
    return [
        row.policy,
        f"{row.goodput_per_s:.2f}",
        _figure(row.goodput_of_oracle, 2),
        f"{100 * row.good_share:.0f}",
        _figure(None if row.hit_token_share is None else 100 * row.hit_token_share, 1),
        _figure(row.ttft_mean_s, 2),
        _figure(row.ttft_p50_s, 2),
        _figure(row.ttft_p95_s, 2),
        _figure(row.prefill_max_over_mean, 2),
        f"{row.evicted_blocks_per_min:.0f}",
        f"{row.spills:.0f}",
        f"{row.preemptions:.0f}",
        f"{row.unfinished:.0f}",
    ]


def _figure(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


MATRICES: dict[str, Callable[[Row], str]] = {
    "Goodput relative to the oracle's": lambda row: _figure(row.goodput_of_oracle, 2),
    "Goodput per second": lambda row: f"{row.goodput_per_s:.2f}",
    "TTFT in seconds: mean / p95": lambda row: f"{_figure(row.ttft_mean_s, 2)} / {_figure(row.ttft_p95_s, 1)}",
    "Hit tokens, %": lambda row: _figure(None if row.hit_token_share is None else 100 * row.hit_token_share, 1),
    "Prefill, busiest worker ÷ mean": lambda row: _figure(row.prefill_max_over_mean, 2),
    "Evicted blocks a minute a worker": lambda row: f"{row.evicted_blocks_per_min:.0f}",
    "Requests moved away from their affinity": lambda row: f"{row.spills:.0f}",
}
"""Figures of which each makes a table of policies by set-ups."""


def _matrix(title: str, rows: Sequence[Row], cell: Callable[[Row], str]) -> str:
    setups = list(dict.fromkeys(_setup(row) for row in rows))
    by_place = {(row.policy, _setup(row)): cell(row) for row in rows}
    heads = ["policy", *(f"{trace} {workers} × {load}" for trace, workers, load in setups)]
    lines = (
        [policy, *(by_place.get((policy, setup), "–") for setup in setups)]
        for policy in dict.fromkeys(row.policy for row in rows)
    )
    return f"**{title}**\n\n{_markdown(heads, lines)}"


def _markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    return "\n".join([*lines, *(f"| {' | '.join(cells)} |" for cells in rows)])


def _overall_cells(each: Overall) -> list[str]:
    return [
        each.policy,
        _figure(each.goodput_of_oracle_mean, 2),
        _figure(each.goodput_of_oracle_worst, 2),
        str(each.setups),
    ]


def _overall_line(each: Overall) -> str:
    mean, worst = _figure(each.goodput_of_oracle_mean, 2), _figure(each.goodput_of_oracle_worst, 2)
    return f"{each.policy}: goodput {mean} of the oracle's in the mean of {each.setups} set-ups, worst {worst}"

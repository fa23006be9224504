"""`python -m simulator goodput`: flags, progress, table, JSON; an ended run goes on where it was."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from simulator.fleet.calibrated_profile import profile_argument
from simulator.fleet.command import show_progress
from simulator.fleet.goodput import BASELINE, COMPARED, GREEDY, OURS, Bar, bars, cases
from simulator.fleet.hardware import H200_8B
from simulator.fleet.html_report import Verdict, about_runs, write_html
from simulator.fleet.kept import KeptRuns
from simulator.fleet.policies import ORACLE
from simulator.fleet.sweep import run_cases
from simulator.fleet.table import as_json, as_markdown, as_text, rows_of

NEEDED = (OURS, BASELINE, ORACLE)
SEEDS_DEFAULT = 3


def add_goodput(subcommands: Any) -> None:  # argparse names the type of add_subparsers() only privately
    parser = subcommands.add_parser("goodput", help="the default policy over 18 set-ups, beside other rules")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="charts and tables as one page that needs nothing else"
    )
    parser.add_argument("--seeds", type=int, choices=range(1, 11), metavar="1…10", default=SEEDS_DEFAULT)
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join((*NEEDED, GREEDY))}")
    parser.add_argument("--profile", type=profile_argument, default=H200_8B.name, metavar="NAME|FILE")
    parser.add_argument("--processes", type=int, choices=range(1, 65), metavar="1…64", default=1)
    parser.add_argument("--keep", type=Path, metavar="FILE", help="finished runs, from which an ended sweep goes on")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    policies = (*NEEDED, GREEDY) if options.quick else COMPARED
    todo = list(cases(seeds=range(1, options.seeds + 1), profile=options.profile, policies=policies))
    kept = KeptRuns(options.keep) if options.keep else None
    results = run_cases(
        todo,
        processes=options.processes,
        progress=show_progress,
        known=kept.read() if kept else None,
        keep=kept.add if kept else lambda case, result: None,
    )
    rows = rows_of(results)
    reached = bars(rows)
    if options.json:
        print(json.dumps(as_json(rows, results) | {"bars": [asdict(each) for each in reached]}, indent=1))
    else:
        print("\n".join([as_text(rows), "", *(_line(each) for each in reached)]))
    if options.markdown:
        options.markdown.write_text(as_markdown(rows))
    if options.html:
        verdicts = [Verdict(each.name, _shown(each.ours), each.bar, each.ok) for each in reached]
        write_html(
            options.html, rows, title="Goodput of the default policy", about=about_runs(results), verdicts=verdicts
        )
    return 1 if any(each.ok is False for each in reached) else 0


def _line(bar: Bar) -> str:
    word = {True: "ok", False: "MISSED", None: "nothing to compare"}[bar.ok]
    return f"{bar.name:48} {_shown(bar.ours):>6}   {bar.bar:28} {word}"


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"

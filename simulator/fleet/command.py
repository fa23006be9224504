"""`python -m simulator fleet`: flags to a grid of runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from simulator.fleet.calibrated_profile import profile_argument
from simulator.fleet.conditions_command import add_conditions, conditions_of
from simulator.fleet.hardware import H200_8B, PROFILES
from simulator.fleet.html_report import about_runs, write_html
from simulator.fleet.policies import POLICIES
from simulator.fleet.sweep import FILE, PARTS, SEEN, TRACES, WORKLOADS, Grid, sweep
from simulator.fleet.table import as_json, as_markdown, as_text, rows_of

REQUESTS_DEFAULT = 3_000
CONVERSATION_REQUESTS_MAX = 4_000
"""What the seen part of the recorded conversation trace holds."""


def add_fleet(subcommands: Any) -> None:  # argparse names the type of add_subparsers() only privately
    parser = subcommands.add_parser("fleet", help="compare routing policies over recorded traffic, without sockets")
    parser.add_argument(
        "--trace", type=_traces, default=TRACES, metavar="NAME,…", help=f"{', '.join(WORKLOADS)}, file:PATH"
    )
    parser.add_argument("--workers", type=_numbers(int, 1, 1_024), default=[4, 16], metavar="N,…")
    parser.add_argument("--load", type=_numbers(float, 0.01, 10), default=[0.3, 0.6, 0.9], metavar="SHARE,…")
    parser.add_argument("--seeds", type=_numbers(int, 0, 2**31), default=[1, 2, 3], metavar="N,…")
    parser.add_argument(
        "--policies", type=_names(POLICIES), default=list(POLICIES), metavar="NAME,…", help=", ".join(POLICIES)
    )
    parser.add_argument(
        "--profile", type=profile_argument, default=H200_8B.name, metavar="NAME|FILE",
        help=f"GPU and model of every worker: {', '.join(PROFILES)}, or a file that `calibrate` wrote",
    )  # fmt: skip
    parser.add_argument("--requests", type=int, default=REQUESTS_DEFAULT, help="a run")
    parser.add_argument("--part", choices=PARTS, default=SEEN, help="what the core was designed with, or the rest")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="charts and tables as one page that needs nothing else"
    )
    add_conditions(parser)
    parser.set_defaults(run=lambda options: _run(parser, options))


def _run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    if not 1 <= options.requests <= CONVERSATION_REQUESTS_MAX:
        parser.error(f"--requests is a number between 1 and {CONVERSATION_REQUESTS_MAX}")
    if options.processes < 1:
        parser.error("--processes must be positive")
    try:
        conditions = conditions_of(options)
    except ValueError as error:
        parser.error(str(error))
    grid = Grid(
        traces=options.trace,
        workers=options.workers,
        loads=options.load,
        policies=options.policies,
        seeds=options.seeds,
        profile=options.profile,
        requests=options.requests,
        part=options.part,
        conditions=conditions,
    )
    results = sweep(grid, processes=options.processes, progress=show_progress)
    rows = rows_of(results)
    print(as_text(rows))
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(as_json(rows, results))))
    if options.markdown:
        options.markdown.write_text(as_markdown(rows))
    if options.html:
        write_html(options.html, rows, title="Routing policies over a modelled fleet", about=about_runs(results))
    return 0


def _traces(text: str) -> list[str]:
    """Names of workloads, and files of recorded ones."""
    known = [name for name in text.split(",") if not name.startswith(FILE)]
    if known:
        _names(WORKLOADS)(",".join(known))
    for name in text.split(","):
        if name.startswith(FILE) and not Path(name.removeprefix(FILE)).is_file():
            raise argparse.ArgumentTypeError(f"{name.removeprefix(FILE)!r} is no file")
    return text.split(",")


def _names(known: Any) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return names

    return parse


def _numbers[Number: (int, float)](kind: type[Number], low: Number, high: Number) -> Callable[[str], list[Number]]:
    def parse(text: str) -> list[Number]:
        try:
            numbers = [kind(part) for part in text.split(",")]
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers") from None
        for number in numbers:
            if not low <= number <= high:
                raise argparse.ArgumentTypeError(f"{number} is not between {low} and {high}")
        return numbers

    return parse


def show_progress(done: int, total: int) -> None:
    """On a terminal only: a log has no use for it."""
    if sys.stderr.isatty():
        print(f"\r{done} of {total} runs", end="" if done < total else "\n", file=sys.stderr, flush=True)

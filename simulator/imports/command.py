"""`python -m simulator import`: a log to a trace for `python -m simulator fleet --trace file:PATH`."""

from __future__ import annotations

import argparse
import gzip
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from simulator.commands import UsageError
from simulator.imports.openai_logs import Counts, read_logs

REASONS_SHOWN = 5
PROGRESS_EVERY = 1_000


def add_import(subcommands: Any) -> None:  # argparse names the type of add_subparsers() only privately
    parser = subcommands.add_parser("import", help="a log of requests to a trace without text")
    parser.add_argument("kind", choices=("openai",), help="openai: one JSON object a line, with the request's body")
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="plain or .gz")
    parser.add_argument("--out", type=Path, required=True, metavar="TRACE.jsonl.gz")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    missing = [str(path) for path in options.files if not path.is_file()]
    if missing:
        raise UsageError(f"no such file: {', '.join(missing)}")
    counts = Counts()
    part = options.out.with_name(options.out.name + ".part")
    with gzip.open(part, "wb") as out:
        for request in read_logs(_lines(options.files), counts):
            out.write(msgspec.json.encode(request) + b"\n")
            if counts.taken % PROGRESS_EVERY == 0 and sys.stderr.isatty():
                print(f"\r{counts.taken:,} requests", end="", file=sys.stderr, flush=True)
    if not counts.taken:
        part.unlink()
        print(_words(counts), file=sys.stderr)
        return 1
    part.replace(options.out)
    print(_words(counts))
    return 0


def _lines(paths: list[Path]) -> Iterator[bytes]:
    for path in paths:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as lines:
            yield from lines


def _words(counts: Counts) -> str:
    refused = sum(counts.refused.values())
    lines = [
        f"{counts.taken:,} requests taken, {refused:,} lines passed over; "
        f"{counts.without_usage:,} without usage, {counts.without_time:,} without a time"
    ]
    lines += [f"  {count:,} × {reason}" for reason, count in counts.refused.most_common(REASONS_SHOWN)]
    return "\n".join(lines)

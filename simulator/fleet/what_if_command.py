"""`python -m simulator what-if --trace FILE --question FILE`: JSON lines of progress, then the answer."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import msgspec

from simulator.fleet.question import read_question
from simulator.fleet.recorded_file import load
from simulator.fleet.side_by_side import cores
from simulator.fleet.what_if_recorded import WhatIf

QUESTION_BYTES_MAX = 1_000_000


def add_what_if(subcommands: Any) -> None:  # argparse names the type of add_subparsers() only privately
    parser = subcommands.add_parser("what-if", help="what a change of the fleet would have done to recorded traffic")
    parser.add_argument("--trace", required=True, metavar="FILE", help="a recording, or a trace in Mooncake's format")
    parser.add_argument("--question", default="-", metavar="FILE", help="one JSON object; - = standard input")
    parser.add_argument("--processes", type=int, default=0, help="runs at a time; 0 = as many as there are cores")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    try:
        question = read_question(_question_bytes(options.question))
        answer = WhatIf(question, load(options.trace), _tell, processes=options.processes or cores()).answer()
    except (ValueError, RuntimeError) as error:
        print(f"what-if: {error}", file=sys.stderr)
        return 2
    _say({"answer": answer})
    return 0


def _question_bytes(name: str) -> bytes:
    """Raises ValueError."""
    if name == "-":
        data = sys.stdin.buffer.read(QUESTION_BYTES_MAX + 1)
    else:
        try:
            data = Path(name).read_bytes()
        except OSError as error:
            raise ValueError(f"the question cannot be read: {type(error).__name__}") from None
    if len(data) > QUESTION_BYTES_MAX:
        raise ValueError(f"the question is longer than {QUESTION_BYTES_MAX:,} bytes")
    return data


def _tell(done: int, of: int, scenario: str, seed: int) -> None:
    _say({"progress": {"done": done, "of": of, "scenario": scenario, "seed": seed}})


def _say(line: object) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()

"""`python -m simulator claims`: flags, table and JSON."""

from __future__ import annotations

import argparse
import json
from typing import Any

from simulator.fleet.claims import SEEDS, T_95, Claim, Figure, as_dict, claims
from simulator.fleet.command import show_progress


def add_claims(subcommands: Any) -> None:  # argparse names the type of add_subparsers() only privately
    parser = subcommands.add_parser("claims", help="measure what articles claim of prefix-aware routing")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--seeds", type=int, choices=sorted(T_95), default=len(SEEDS), help="runs of each set-up")
    parser.add_argument("--processes", type=int, choices=range(1, 65), metavar="1…64", default=1)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    found = claims(seeds=tuple(range(1, options.seeds + 1)), processes=options.processes, progress=show_progress)
    if options.json:
        print(json.dumps({"seeds": options.seeds, "claims": [as_dict(claim) for claim in found]}, indent=1))
    else:
        print("\n".join(_text(claim) for claim in found))
    return 1 if any(figure.met is False for claim in found for figure in claim.figures) else 0


def _text(claim: Claim) -> str:
    lines = [f"{claim.id}  {claim.says}", f"    {claim.setup}"]
    for figure in claim.figures:
        measured = f"{figure.mean:.1f} [{figure.low:.1f}, {figure.high:.1f}] {figure.unit}"
        lines.append(f"    {figure.name:44} article {_said(figure):>8}   measured {measured}   {_WORDS[figure.met]}")
    return "\n".join([*lines, f"    {claim.why}", ""])


_WORDS = {True: "met", False: "NOT MET", None: ""}


def _said(figure: Figure) -> str:
    if figure.article is None:
        return "–"
    low, high = figure.article
    return f"{low:g}" if low == high else f"{low:g}–{high:g}"

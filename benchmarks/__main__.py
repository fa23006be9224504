"""`make bench`: every measure of the data plane, beside its peers, and of the dashboard, in one run: a table,
`benchmarks/out/latest.json` and the same as `latest.md`.

    python -m benchmarks [--only proxy,quality] [--all] [--rounds N] [--out FILE]

Groups that take longer than two minutes run only where they are named, or with --all. Run it on an otherwise quiet
machine with at least two cores. The router runs as it is installed: with compiled hot modules where a build fits the
sources (`router/native`), which the report says. Exit status 1 when a measure is missed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import alone, dashboard, in_process, machine, memory, proxy, quality, recording, unseen
from benchmarks.markdown import markdown
from benchmarks.proxybench.kit import BenchError
from benchmarks.report import Report, read_previous, table

OUT = Path(__file__).parent / "out" / "latest.json"
GROUPS: dict[str, Callable[[Report], None]] = {
    "proxy": proxy.measure,
    "decision": in_process.measure_decision,
    "exact_decision": in_process.measure_exact_decision,
    "events": in_process.measure_events,
    "memory": memory.measure,
    "recording": recording.measure_recording,
    "unseen": unseen.measure,
    "quality": quality.measure,
    "snapshot": alone.measure_snapshot,
    "revocation": alone.measure_revocation,
    "ingestion": alone.measure_ingestion,
    "poll_scale": alone.measure_poll_scale,
    "dashboard": dashboard.measure,
    "simulator": alone.measure_simulator,
}
LONG = frozenset({"revocation", "dashboard", "simulator"})
"""Take longer than two minutes: only where they are asked for."""
ROUNDS = 3
"""Of every measure of the data plane; figures are medians. Without the long groups it takes a quarter of an hour."""


def main() -> int:
    options = _options()
    report = Report(rounds=options.rounds)
    about = machine.about()
    for name in chosen(options):
        _run(report, name)
    print(", ".join(str(about[name]) for name in ("commit", "python", "router_code", "machine")))
    previous = read_previous(options.out)
    print(table(report, previous))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.with_suffix(".md").write_text(markdown(report, about, previous))
    options.out.write_text(json.dumps(report.as_json(about), indent=1, ensure_ascii=False) + "\n")
    return 1 if any(measure.ok is False for measure in report.measures) else 0


def _run(report: Report, name: str) -> None:
    """A group that cannot be measured is told as such; the others still are."""
    print(f"{name} …", file=sys.stderr, flush=True)
    started_s = time.monotonic()
    try:
        GROUPS[name](report)
    except (BenchError, OSError, subprocess.SubprocessError) as error:
        report.failed_group(name, f"{type(error).__name__}: {error}")
    report.seconds[name] = round(time.monotonic() - started_s, 1)


def chosen(options: argparse.Namespace) -> list[str]:
    """Names of groups, in their order."""
    if options.only:
        return list(options.only)
    return [name for name in GROUPS if options.all or name not in LONG]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--only", type=_groups, metavar="GROUP,…", help=f"of {','.join(GROUPS)}")
    which.add_argument("--all", action="store_true", help=f"with those that take long: {', '.join(sorted(LONG))}")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, default=OUT, help="report; the one that is there is compared with")
    return parser.parse_args()


def _groups(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in GROUPS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no such group: {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    return names


if __name__ == "__main__":
    sys.exit(main())

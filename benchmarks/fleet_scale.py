"""The fleet simulator: requests that it simulates in a minute of one core's time, and its memory at 1,024 workers.

    python -m benchmarks.fleet_scale [--json] [--only weka,kb8k] [--workers 64] [--requests 7500]

The full routing policy decides each request, with compiled hot modules where a build fits the sources. Each workload is
a process of its own: its CPU time (making the workload included) and the most memory that it held. CPU time counts what
neighbours on a shared core take from its caches: the bar is for a quiet machine, and the load is printed beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

from benchmarks.machine import ROOT
from router.native.finder import use_compiled

WORKLOADS = ("weka", "conversation", "toolagent", "kb8k")
LARGE = "weka"
"""The longest prompts: what memory is measured with."""
LOAD = 0.9
WORKERS, REQUESTS = 64, 7_500
WORKERS_LARGE, REQUESTS_LARGE = 1_024, 20_000
REQUESTS_A_MINUTE_MIN = 100_000
MEMORY_GIB_MAX = 4.0
TIMEOUT_S = 1_500


@dataclass(frozen=True, slots=True)
class Figures:
    workload: str
    workers: int
    requests: int
    """Routed: a closed loop sends fewer than were asked for."""
    cpu_s: float
    peak_gib: float
    compiled: bool
    load_average: float

    @property
    def requests_a_minute(self) -> float:
        return 60 * self.requests / self.cpu_s


def simulate(workload: str, workers: int, requests: int) -> Figures:
    """In this process, which must not have imported the routing core before."""
    compiled = use_compiled("auto")
    from simulator.fleet.hardware import H200_8B
    from simulator.fleet.policies import POLICIES
    from simulator.fleet.run import FleetRun
    from simulator.fleet.sweep import UNSEEN, Case, workload_of

    began_s = time.process_time()
    case = Case(workload, workers, LOAD, "tidemark", 1, H200_8B.name, requests, UNSEEN)
    policy = POLICIES[case.policy](workers, H200_8B, random.Random(1))
    result = FleetRun(workload_of(case, H200_8B), policy, H200_8B, workers=workers).run()
    cpu_s = time.process_time() - began_s
    peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return Figures(workload, workers, result.requests, cpu_s, peak_gib, compiled, os.getloadavg()[0])


def measures(rows: list[Figures], large: Figures | None) -> list[dict[str, object]]:
    """As `benchmarks/alone.py` takes them."""
    found: list[dict[str, object]] = [
        {
            "name": f"simulator, {row.workload}, {row.workers} workers",
            "unit": "requests/CPU minute",
            "ours": round(row.requests_a_minute),
            "bar": REQUESTS_A_MINUTE_MIN,
            "at_least": True,
            "why": "" if row.compiled else "the hot modules are not compiled for these sources",
        }
        for row in rows
    ]
    if large is not None:
        name = f"simulator, {large.workload}, {large.workers:,} workers, most memory"
        found.append({"name": name, "unit": "GiB", "ours": round(large.peak_gib, 2), "bar": MEMORY_GIB_MAX})
    return found


def _apart(workload: str, workers: int, requests: int) -> Figures:
    arguments = ["--one", workload, "--workers", str(workers), "--requests", str(requests)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.fleet_scale", *arguments],
        stdout=subprocess.PIPE, text=True, cwd=ROOT, timeout=TIMEOUT_S, check=True,
    )  # fmt: skip
    return Figures(**json.loads(done.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--only", default=",".join((*WORKLOADS, "memory")), metavar="NAME,…")
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--one", choices=WORKLOADS, help="in this process; its figures as JSON")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(asdict(simulate(options.one, options.workers, options.requests))))
        return
    only = options.only.split(",")
    rows = [_apart(name, options.workers, options.requests) for name in WORKLOADS if name in only]
    large = _apart(LARGE, WORKERS_LARGE, REQUESTS_LARGE) if "memory" in only else None
    found = measures(rows, large)
    if options.json:
        runs = [asdict(row) for row in (*rows, *([large] if large else []))]
        print(json.dumps({"measures": found, "runs": runs}, indent=1))
        return
    for item in found:
        print(f"{item['name']}: {item['ours']} {item['unit']} (bar {item['bar']}) {item.get('why', '')}")
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()

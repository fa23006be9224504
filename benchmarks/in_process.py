"""Decisions and KV events without sockets: each benchmark in a process of its own, as often as there are rounds.

With compiled hot modules where a build fits the sources, as the router itself would run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from benchmarks.machine import ROOT, code_to_run
from benchmarks.proxybench.kit import PROXY_CORE, BenchError
from benchmarks.report import Bar, Report, median

TIMEOUT_S = 400
DECISION_ROWS = ((64, 65_536), (512, 65_536), (64, 524_288))
"""(workers, prompt bytes): 16k tokens before 64 and 512 workers, 128k tokens before 64."""
NEW_BYTES = 6_554
"""Of a tenth of 64 KB, 1.6k tokens."""
KNOWN_ROWS = ((64, 65_536, NEW_BYTES), (64, 524_288, NEW_BYTES))
"""(workers, prompt bytes, bytes of new text behind a known prefix): 16k and 128k tokens."""
EXACT_ROWS = ((64, 16_000), (512, 16_000), (64, 128_000))
"""(workers, prompt tokens)."""
DECISIONS, EXACT_DECISIONS = 1500, 600
"""A round; the p99 is then the 15th and the 6th longest."""
CHURN_BLOCKS = 5_000_000
"""Ten times what the fleet holds."""
GROWTH_PERCENT_MAX = 2.0
"""Of RSS over the last nine tenths of the churn: flat but for the allocator's whole pages."""
RATES = {
    "recorded from a real worker": "recorded",
    "prefill 512 × 16 tokens, full cache": "prefill-sized",
    "decode 32 requests, 1 × 16 each, full cache": "single blocks",
    "prefill 64 × 128 tokens, full cache": "128-token blocks",
}

_Json = Any  # what a benchmark prints


def measure_decision(report: Report) -> None:
    rows = ",".join("x".join(map(str, row)) for row in (*DECISION_ROWS, *KNOWN_ROWS))
    results = _run_each_round(report, "benchmarks.decision", "--rows", rows, "--rounds", str(DECISIONS))
    usual, wide, long, known, known_long = (
        [run["rows"][at] for run in results] for at in range(len(DECISION_ROWS) + len(KNOWN_ROWS))
    )
    _say_decision(report, "decision", [usual, wide, long])
    report.add("decision, 128k ÷ 16k tokens", "×", _median_ratio(long, usual))
    ratio = _median_ratio(known_long, known)
    report.add("decision, 128k ÷ 16k tokens, known prefix", "×", ratio, bars=[Bar(2)])


def measure_exact_decision(report: Report) -> None:
    rows = ",".join(f"{workers}x{size}" for workers, size in EXACT_ROWS)
    results = _run_each_round(report, "benchmarks.exact_decision", "--rows", rows, "--rounds", str(EXACT_DECISIONS))
    found = [[run[at] for run in results] for at in range(len(EXACT_ROWS))]
    _say_decision(report, "exact decision", found)
    report.add("exact decision, 128k ÷ 16k tokens", "×", _median_ratio(found[2], found[0]), bars=[Bar(2)])


def _say_decision(report: Report, name: str, rows: list[list[_Json]]) -> None:
    """`rows`: 16k tokens and 64 workers, 512 workers, 128k tokens; each once for every round."""
    usual, wide, long = rows
    p50 = partial(_median, "decision_us_p50")
    report.add(f"{name}, 16k tokens, 64 workers, p50", "µs", p50(usual), bars=[Bar(150)])
    report.add(f"{name}, 16k tokens, 64 workers, p99", "µs", _median("decision_us_p99", usual), bars=[Bar(1000)])
    report.add(f"{name}, 512 workers, p50", "µs", p50(wide))
    report.add(f"{name}, 512 ÷ 64 workers", "×", _median_ratio(wide, usual), bars=[Bar(2)])
    report.add(f"{name}, 128k tokens, p50", "µs", p50(long))


def _median_ratio(rows: list[_Json], others: list[_Json]) -> float:
    """Within a round, so that a slow minute of the machine is in both."""
    pairs = zip(rows, others, strict=True)
    return median(row["decision_us_p50"] / other["decision_us_p50"] for row, other in pairs)


def measure_events(report: Report) -> None:
    results = _run_each_round(report, "benchmarks.events", "--parts", "rates")
    for name, title in RATES.items():
        rate = median(_rate(run, name) for run in results)
        report.add(f"KV events, {title}", "blocks/s", rate, bars=[Bar(1e6, at_least=True)])
    memory = _run_module("benchmarks.events", "--json", "--parts", "memory", "--churn-blocks", str(CHURN_BLOCKS))[
        "memory"
    ]
    # After the churn: dicts have grown to what their whole life needs.
    report.add("index, bytes a block", "B", memory["bytes_per_block_after_churn"], bars=[Bar(150)])
    report.add("RSS growth under churn", "%", memory["growth_percent"], bars=[Bar(GROWTH_PERCENT_MAX)])
    report.notes["events_memory"] = memory


def _rate(run: Mapping[str, _Json], name: str) -> float:
    return next(float(rate["blocks_per_s"]) for rate in run["rates"] if rate["name"] == name)


def _median(field: str, runs: list[_Json]) -> float:
    return median(run[field] for run in runs)


def _run_each_round(report: Report, module: str, *arguments: str) -> list[_Json]:
    return [_run_module(module, "--json", *arguments) for _ in range(report.rounds)]


def _run_module(module: str, *arguments: str) -> _Json:
    through = ["-m", "router.native", "run", module] if code_to_run() == "compiled" else ["-m", module]
    argv = ["taskset", "-c", str(PROXY_CORE), sys.executable, *through, *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=ROOT)
    if done.returncode:
        raise BenchError(f"{module} failed: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
    return json.loads(done.stdout)

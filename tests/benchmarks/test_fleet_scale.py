"""The simulator's benchmark: its figures are those of a run, and its measures have their bars."""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.fleet_scale import Figures, measures


def test_one_workload_is_simulated_in_a_process_of_its_own() -> None:
    argv = [sys.executable, "-m", "benchmarks.fleet_scale", "--json", "--only", "kb8k", "--workers", "3"]
    done = subprocess.run([*argv, "--requests", "80"], capture_output=True, text=True, timeout=120, check=True)
    found = json.loads(done.stdout)
    [run], [measure] = found["runs"], found["measures"]
    assert run["requests"] == 80 and run["cpu_s"] > 0 and 0.02 < run["peak_gib"] < 2
    assert measure["ours"] == round(60 * 80 / run["cpu_s"])


def test_requests_have_a_least_and_memory_a_most() -> None:
    row = Figures("weka", 1_024, 2_000, 1.0, 3.5, True, 0.0)
    speed, memory = measures([row], row)
    assert (speed["ours"], speed["bar"], speed["at_least"]) == (120_000, 100_000, True)
    assert (memory["ours"], memory["bar"], memory.get("at_least", False)) == (3.5, 4.0, False)

"""Benchmarks that have a command of their own, as groups of `make bench`: each in a process of its own, once.

They start databases, brokers and workers, or take a core for minutes, so that more rounds would tell little more. What
a command prints as JSON stays in the report's notes, whole; what has a bar becomes a measure.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from benchmarks.machine import ROOT
from benchmarks.proxybench.kit import BenchError
from benchmarks.report import Bar, Report

TIMEOUT_S = 1_800
ADMITTED = "requests admitted behind the acknowledgement, racing"
REVOCATION_BARS: Mapping[str, tuple[str, str, str, float]] = {
    "healthy": ("revocation, first refusal p99, every way open", "ms", "p99_ms", 200),
    "lost": ("revocation, first refusal p99, by the poll alone", "ms", "p99_ms", 2_000),
    "restarted": ("requests admitted behind a router's restart", "", "admitted", 0),
    "racing": (ADMITTED, "", "admitted_after_ack", 0),
    "cut_off": ("cut off, time to refusal", "s", "denied_after_s", 60),
}
"""Phase → name, unit, figure, the most it may be. A phase has further conditions of its own (others are served, racers
did race): without them it is missed whatever the figure."""

_Json = Any  # what a benchmark prints


def measure_snapshot(report: Report) -> None:
    """1,000 tenants of 5 namespaces and 200 workers: from the database to what a router has in force."""
    say_snapshot(report, _run_module("benchmarks.control_scale"))


def measure_revocation(report: Report) -> None:
    say_revocation(report, _run_module("benchmarks.revocation"))


def measure_poll_scale(report: Report) -> None:
    """1,000 workers every two seconds, by Celery before PostgreSQL and Valkey."""
    say_poll_scale(report, _run_module("benchmarks.poll_scale"))


def measure_ingestion(report: Report) -> None:
    say_measures(report, "ingestion", _run_module("benchmarks.ingestion"))


def measure_simulator(report: Report) -> None:
    say_measures(report, "simulator", _run_module("benchmarks.fleet_scale"))
    say_measures(report, "what_if", _run_module("benchmarks.what_if_scale"))


# what each prints, in words of the report


def say_snapshot(report: Report, found: _Json) -> None:
    rows = (
        ("snapshot, compile", "s", found["compile_s"]["median"], 1.0),
        ("snapshot, longest silence of a router that takes it", "ms", found["router_stall_ms"]["median"], 50.0),
        ("lists of a large installation, most queries", "", found["queries_max"], 12),
    )
    for name, unit, ours, most in rows:
        report.add(name, unit, ours, bars=[Bar(most)])
    report.add("snapshot, publication", "ms", found["publish_ms"])
    report.add("snapshot, size", "MB", found["document_bytes"] / 1e6)
    report.notes["snapshot"] = found


def say_revocation(report: Report, found: _Json) -> None:
    for phase, figures in found["phases"].items():
        name, unit, figure, most = REVOCATION_BARS[phase]
        ours = figures[figure]
        broken = not figures["ok"] and ours is not None and ours <= most
        why = f"a condition of the phase was not met: {figures}" if broken else ""
        report.add(name, unit, ours, bars=[Bar(most)], why=why, failed=not figures["ok"])
    report.notes["revocation"] = found


def say_poll_scale(report: Report, found: _Json) -> None:
    workers = f"{found['workers']:,} workers polled"
    report.add(f"{workers}, CPU", "cores", found["cores"], bars=[Bar(1.0)])
    report.add(f"{workers}, stored", "%", 100 * found["polled_share"], bars=[Bar(95, at_least=True)])
    report.add(f"{workers}, stale at the end", "", found["stale_workers"], bars=[Bar(0)])
    report.notes["poll_scale"] = found


def say_measures(report: Report, group: str, found: _Json) -> None:
    """Of a command that names its measures itself: `{"measures": [{name, unit, ours, bar, at_least, why}, …], …}`."""
    for item in found["measures"]:
        bars = [] if item.get("bar") is None else [Bar(item["bar"], at_least=item.get("at_least", False))]
        report.add(item["name"], item["unit"], item["ours"], bars=bars, why=item.get("why", ""))
    report.notes[group] = found


def _run_module(module: str) -> _Json:
    """What it prints, also where a bar of its own is missed and it says so by its exit status."""
    if importlib.util.find_spec(module) is None:
        raise BenchError(f"{module} is not part of this installation")
    with tempfile.TemporaryFile("w+") as errors:
        done = subprocess.run(
            [sys.executable, "-m", module, "--json"], stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT,
            timeout=TIMEOUT_S,
        )  # fmt: skip
        errors.seek(0)
        said = errors.read().strip().splitlines()
    try:
        return json.loads(figures_in(done.stdout))
    except ValueError:
        reason = said[-1] if said else "no reason given"
        raise BenchError(f"{module} ended with {done.returncode} without figures: {reason}") from None


def figures_in(printed: str) -> str:
    """The JSON object behind what the parts under measurement logged."""
    if printed.startswith("{"):
        return printed
    _, brace, rest = printed.partition("\n{")
    return brace + rest

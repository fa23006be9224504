"""`manage.py compare_routing`: the demo twice, under two routings, and what the difference in reuse is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.fleet.models import WorkerPool
from controlplane.supervisor.management.commands.up import TRAFFIC

ROUTINGS = (WorkerPool.Routing.TIDEMARK.value, WorkerPool.Routing.ROUND_ROBIN.value)
GAIN_MIN_POINTS = 30.0
"""Percentage points of hit-token share that prefix-aware routing has to be worth."""
SHOWN = ("requests", "errors", "prompt_tokens", "hit_tokens", "predicted_hit_tokens", "evictions", "violations")


class Command(BaseCommand):
    help = (
        "Runs the demo twice on fresh data, with Tidemark's routing and with round robin, and compares the share of "
        f"prompt tokens served from cache. Status 1 when the gain is below {GAIN_MIN_POINTS:.0f} points."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--traffic", choices=TRAFFIC, default="weka", help="which trace to replay")
        parser.add_argument("--for", dest="headless_s", type=float, default=60, metavar="SECONDS", help="each run")
        parser.add_argument("--json", action="store_true", help="print JSON only")

    def handle(self, *args: Any, **options: Any) -> None:  # Any: Django's own signature
        reports = {name: self._run(name, options) for name in ROUTINGS}
        result = comparison(reports)
        self.stdout.write(json.dumps(result, indent=1) if options["json"] else as_text(result))
        if result["gain_points"] is None or result["gain_points"] < GAIN_MIN_POINTS:
            sys.exit(1)

    def _run(self, routing: str, options: dict[str, Any]) -> dict[str, Any]:
        """One demo in a run folder of its own, so that neither finds the other's figures or caches."""
        self.stderr.write(f"{routing}: {options['headless_s']:.0f} s of {options['traffic']} traffic …")
        with tempfile.TemporaryDirectory(prefix="tidemark-compare-") as folder:
            report, log = Path(folder) / "report.json", Path(folder) / "log"
            command = [sys.executable, "manage.py", "up", "--demo", "--traffic", options["traffic"]]
            command += ["--for", str(options["headless_s"]), "--routing", routing, "--report", str(report)]
            with log.open("w") as output:
                done = subprocess.run(  # noqa: S603  (our own command line)
                    command,
                    cwd=settings.BASE_DIR,
                    env={**os.environ, "TIDEMARK_RUN_DIR": f"{folder}/run"},
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            if done.returncode or not report.exists():
                raise CommandError(f"the {routing} run failed (status {done.returncode}):\n{_tail(log)}")
            return dict(json.loads(report.read_text()))


def comparison(reports: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """{routing: report …, gain_points}: the difference in percentage points, null when a share is unknown."""
    ours, baseline = (reports[name]["hit_token_share"] for name in ROUTINGS)
    gain = None if ours is None or baseline is None else round((ours - baseline) * 100, 1)
    return {**reports, "gain_points": gain}


def as_text(result: dict[str, Any]) -> str:
    lines = [f"{'':24}{ROUTINGS[0]:>14}{ROUTINGS[1]:>14}"]
    for name in SHOWN:
        lines.append(f"{name:24}" + "".join(f"{_number(result[routing][name]):>14}" for routing in ROUTINGS))
    for name in ("ttft_hit_ms", "ttft_miss_ms"):
        for quantile in ("p50", "p95"):
            values = (result[routing][name][quantile] for routing in ROUTINGS)
            lines.append(f"{name + ' ' + quantile:24}" + "".join(f"{_number(value):>14}" for value in values))
    shares = "".join(f"{_share(result[routing]['hit_token_share']):>14}" for routing in ROUTINGS)
    gain = result["gain_points"]
    lines.append(f"{'hit_token_share':24}{shares}")
    lines.append(f"difference: {'unknown' if gain is None else f'{gain:+.1f} points'}")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _tail(log: Path, lines: int = 20) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])

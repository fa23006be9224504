"""A thousand workers polled every two seconds by real Celery workers: CPU, freshness and misses.

    python -m benchmarks.poll_scale [--json] [--workers 1000] [--seconds 40]

One process answers for all workers, each under an address of its own in 127.0.0.0/8, with a metrics page in vLLM's
format whose counters grow. Celery (prefork, as `manage.py up` starts it) and its beat run before PostgreSQL and Valkey.
CPU is the Celery worker's whole process tree, after a warm-up; the bar is one core.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.control_services import ROOT, Services, cpu_s, services
from benchmarks.machine import about

INTERVAL_S = 2
WARM_UP_S = 15
CORES_MAX = 1.0
FRESH_WITHIN_S = 3 * INTERVAL_S
PORT = 28_960


@dataclass(frozen=True)
class Result:
    workers: int
    database: str
    interval_s: int
    seconds: float
    cores: float
    """CPU seconds a second of the Celery worker and its children."""
    polled_share: float
    """Polls that stored a good page ÷ workers × intervals."""
    stale_workers: int
    """At the end: last good poll older than three intervals."""
    ok: bool


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--workers", type=int, default=1_000)
    parser.add_argument("--seconds", type=int, default=40)
    options = parser.parse_args()
    result = measure(options.workers, options.seconds)
    if options.json:
        print(json.dumps(asdict(result) | {"about": about()}, indent=1))
    else:
        print(
            f"{result.workers} workers every {result.interval_s} s on {result.database}: {result.cores:.2f} cores"
            f" (≤ {CORES_MAX}), {result.polled_share:.1%} of polls stored, {result.stale_workers} stale at the end"
        )
    return 0 if result.ok else 1


def measure(workers: int, seconds: int) -> Result:
    with services() as own, _fleet(), _celery(own) as worker:
        _ask(own, "fill", str(workers))
        time.sleep(WARM_UP_S)
        before_s, began = cpu_s(worker.pid), time.monotonic()
        polls_before = int(_ask(own, "polls"))
        time.sleep(seconds)
        spent_s, took_s = cpu_s(worker.pid) - before_s, time.monotonic() - began
        polls = int(_ask(own, "polls")) - polls_before
        stale = int(_ask(own, "stale"))
    share = polls / (workers * took_s / INTERVAL_S)
    cores = spent_s / took_s
    return Result(
        workers, own.database, INTERVAL_S, round(took_s, 1), round(cores, 3), round(share, 4), stale,
        ok=cores <= CORES_MAX and share >= 0.95 and not stale,
    )  # fmt: skip


@contextmanager
def _fleet() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.poll_scale_fleet", str(PORT)], cwd=ROOT)
    try:
        yield
    finally:
        process.kill()
        process.wait(5)


@contextmanager
def _celery(own: Services) -> Iterator[subprocess.Popen[bytes]]:
    environment = own.environment | {"TIDEMARK_POLL_INTERVAL_S": str(INTERVAL_S)}
    base = [sys.executable, "-m", "celery", "-A", "controlplane.celery", "--quiet"]
    worker_command = [*base, "worker", "--pool", "prefork", "--concurrency", "2", "--without-gossip",
                      "--without-mingle", "--loglevel", "WARNING"]  # fmt: skip
    beat_command = [*base, "beat", "--loglevel", "WARNING", "--pidfile", ""]
    with Path(own.folder / "celery.log").open("wb") as log:
        worker, beat = (
            subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
            for command in (worker_command, beat_command)
        )
        try:
            yield worker
        finally:
            for process in (beat, worker):
                process.terminate()
            for process in (beat, worker):
                process.wait(30)


def _ask(own: Services, *arguments: str) -> str:
    command = [sys.executable, "-m", "benchmarks.poll_scale_rows", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=own.environment, check=True, capture_output=True, text=True
    ).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())

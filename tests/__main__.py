"""`python -m tests`: the database tests on PostgreSQL and the whole suite on SQLite. Arguments go to pytest.

Two halves: what needs no quiet machine runs on both databases side by side, a core for each; then whole installations
and browsers have the machine for themselves. Those of the second half that fail are run once more, alone: they are in
real time, and a machine that stood still is no fault of the code. A fault fails twice, and both runs are printed. A
choice by path or marker is one run on SQLite. Status 0 only when all passed; under CI=true a missing program is a
failure.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests import services

ROOT = Path(__file__).resolve().parent.parent
DATABASE_TESTS = tuple(
    f"tests/{name}"
    for name in (
        "alerts", "approvals", "control", "dashboard", "declarative", "fleet", "identity", "isolation", "placements",
        "policies", "prompts", "reports", "revocation", "rollouts", "telemetry", "webhooks", "what_if",
    )
)  # fmt: skip
ALONE = "flow or browser or real_time"
"""Markers of tests in real time, on real services."""
FAILED, NO_TESTS = 1, 5
"""Pytest's own statuses."""


def main(arguments: list[str]) -> int:
    for name in services.install_missing():
        print(f"{name} is not installed and cannot be installed here", flush=True)
    if _chosen(arguments):
        return pytest(arguments, {})
    with on_postgres(arguments) as database:
        beside = pytest([*arguments, "-m", f"not ({ALONE})"], {})
    alone = in_real_time(arguments)
    if database.status:
        print(f"the database tests failed on PostgreSQL (status {database.status}), see above", flush=True)
    found = [status for status in (beside, alone, database.status) if status not in (0, NO_TESTS)]
    return found[0] if found else NO_TESTS if beside == alone == NO_TESTS else 0


def _chosen(arguments: list[str]) -> bool:
    return "-m" in arguments or any(
        not argument.startswith("-") and (ROOT / argument.split("::")[0]).exists() for argument in arguments
    )


def in_real_time(arguments: list[str]) -> int:
    status = pytest([*arguments, "-m", ALONE], {})
    if status != FAILED:
        return status
    print("tests in real time failed, see above: once more, by themselves", flush=True)
    return pytest([*arguments, "-m", ALONE, "--last-failed", "--last-failed-no-failures=none"], {})


class Run:
    """What became of the tests on PostgreSQL, once they ended."""

    status = 0


@contextlib.contextmanager
def on_postgres(arguments: list[str]) -> Iterator[Run]:
    """The database tests on a private PostgreSQL beside what the block does; their output follows it."""
    run = Run()
    if services.postgres_binaries() is None:
        print("NOT RUN: the database tests on PostgreSQL, which is missing", flush=True)
        run.status = 1 if services.IN_CI else 0
        yield run
        return
    folders = [folder for folder in DATABASE_TESTS if (ROOT / folder).exists()]
    command = [sys.executable, "-m", "pytest", *folders, "-m", f"not ({ALONE})", *arguments]
    with services.private_postgres() as url, tempfile.TemporaryFile() as output:
        environment = {**os.environ, "TIDEMARK_DATABASE_URL": url}
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield run
            status = process.wait()
        finally:
            process.kill()
            output.seek(0)
            print("database tests on PostgreSQL", flush=True)
            sys.stdout.buffer.write(output.read())
            sys.stdout.flush()
    run.status = 0 if status == NO_TESTS else status


def pytest(arguments: list[str], environment: dict[str, str]) -> int:
    return subprocess.run(
        [sys.executable, "-m", "pytest", *arguments], cwd=ROOT, env={**os.environ, **environment}
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`python -m tests`: the database tests on PostgreSQL, then the whole suite on SQLite. Arguments go to pytest.

The last lines are pytest's own. Status 0 only when both passed; under CI=true a missing program is a failure.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests import services

ROOT = Path(__file__).resolve().parent.parent
DATABASE_TESTS = ("tests/control", "tests/fleet", "tests/telemetry")
NO_TESTS = 5


def main(arguments: list[str]) -> int:
    for name in services.install_missing():
        print(f"{name} is not installed and cannot be installed here", flush=True)
    database = on_postgres(arguments)
    suite = pytest(arguments, {})
    if database not in (0, NO_TESTS):
        print(f"the database tests failed on PostgreSQL (status {database}), see above", flush=True)
    return suite or (0 if database == NO_TESTS else database)


def on_postgres(arguments: list[str]) -> int:
    """The database tests once more on a private PostgreSQL. Status 0 with a line when there is none."""
    folders = [folder for folder in DATABASE_TESTS if (ROOT / folder).exists()]
    if services.postgres_binaries() is None:
        print("NOT RUN: the database tests on PostgreSQL, which is missing", flush=True)
        return 1 if services.IN_CI else 0
    if any(not argument.startswith("-") and (ROOT / argument.split("::")[0]).exists() for argument in arguments):
        return 0  # a choice of tests by path is run on SQLite alone
    print("database tests on PostgreSQL", flush=True)
    with services.private_postgres() as url:
        return pytest([*folders, "-m", "not flow and not browser", *arguments], {"TIDEMARK_DATABASE_URL": url})


def pytest(arguments: list[str], environment: dict[str, str]) -> int:
    return subprocess.run(
        [sys.executable, "-m", "pytest", *arguments], cwd=ROOT, env={**os.environ, **environment}
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A control plane of one's own for measurements: PostgreSQL, Valkey, migrations; ended with the measurement.

The programs that `make test` installs are looked for; without PostgreSQL SQLite is measured, and the result says so.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Services:
    environment: dict[str, str]
    database: str
    """`postgresql` or `sqlite`."""
    folder: Path


@contextlib.contextmanager
def services() -> Iterator[Services]:
    """Raises OSError or CalledProcessError when something cannot be started."""
    from tests import services as private

    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidemark-bench-")))
        redis_url = stack.enter_context(private.private_valkey(folder))
        own = {"TIDEMARK_RUN_DIR": str(folder / "run"), "TIDEMARK_REDIS_URL": redis_url, "TIDEMARK_LOG_LEVEL": "ERROR"}
        database = "sqlite"
        if private.postgres_binaries() is not None:
            own["TIDEMARK_DATABASE_URL"] = stack.enter_context(private.private_postgres())
            database = "postgresql"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEMARK_", "DJANGO_"))}
        environment = kept | own | {"DJANGO_SETTINGS_MODULE": "controlplane.settings", "OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], cwd=ROOT, env=environment, check=True)
        yield Services(environment, database, folder)


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and all its descendants, those that ended among them included where waited for."""
    ticks, waiting = 0, [pid]
    while waiting:
        each = waiting.pop()
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = Path(f"/proc/{each}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += sum(int(value) for value in fields[11:15])
            for task in Path(f"/proc/{each}/task").iterdir():
                waiting += [int(child) for child in (task / "children").read_text().split()]
    return ticks / os.sysconf("SC_CLK_TCK")

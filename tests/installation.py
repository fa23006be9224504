"""A whole Tidemark, `manage.py up` on ports and in a run folder of its own, observed and driven from outside."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.services import free_port

ROOT = Path(__file__).resolve().parent.parent
SERVING_WITHIN_S = 90
END_WITHIN_S = 15
ROLES = {
    "valkey": "127.0.0.1:{TIDEMARK_VALKEY_PORT}",
    "web": "controlplane.asgi:application",
    "celery": "controlplane.celery --quiet worker",
    "beat": "controlplane.celery --quiet beat",
    "kv-events": "manage.py kv_events",
    "router": "-m router",
    "w2": "--name w2",
    "traffic": "simulator traffic",
}
"""Role → what its command line contains. Valkey replaces its own by its name and address."""
FIRST_WORKER_PORTS = range(24_000, 24_900, 16)
"""Bases whose +1000 and +2000 neighbours lie outside the ephemeral range."""
_places = itertools.count(os.getpid())
"""One base after the other: an installation of this process may still run when the next is started."""


class Installation:
    def __init__(self, folder: Path) -> None:
        self.run_dir = folder / "run"
        self.log_file = folder / "log"
        self.ports = {
            name: free_port()
            for name in (
                "TIDEMARK_WEB_PORT",
                "TIDEMARK_ROUTER_PORT",
                "TIDEMARK_ROUTER_ADMIN_PORT",
                "TIDEMARK_VALKEY_PORT",
            )
        }
        self.ports["TIDEMARK_DEMO_WORKER_PORT"] = FIRST_WORKER_PORTS[next(_places) % len(FIRST_WORKER_PORTS)]
        self.process: subprocess.Popen[bytes] | None = None
        self.environment: dict[str, str] = {}

    @property
    def web(self) -> str:
        return f"http://127.0.0.1:{self.ports['TIDEMARK_WEB_PORT']}"

    @property
    def router(self) -> str:
        return f"http://127.0.0.1:{self.ports['TIDEMARK_ROUTER_PORT']}"

    @property
    def admin(self) -> str:
        """The router's admin port."""
        return f"http://127.0.0.1:{self.ports['TIDEMARK_ROUTER_ADMIN_PORT']}"

    def start(self, *arguments: str, environment: dict[str, str] | None = None) -> None:
        self.environment = self._environment() | (environment or {})
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "up", *arguments],
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _environment(self) -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("TIDEMARK_")}
        inherited.pop("REDIS_URL", None)
        inherited.pop("DJANGO_SETTINGS_MODULE", None)
        names = {name: str(port) for name, port in self.ports.items()}
        return {**inherited, **names, "TIDEMARK_RUN_DIR": str(self.run_dir)}

    def python(self, code: str) -> Any:
        """Run code inside the installation's control plane; what it assigns to `result`, as JSON."""
        program = f"result = None\n{code}\nimport json as _json\nprint('\\n' + _json.dumps(result))"
        command = [sys.executable, "manage.py", "shell", "-v", "0", "-c", program]
        done = subprocess.run(command, cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.strip().splitlines()[-1])

    def wait_until_serving(self) -> None:
        wait_until(lambda: "serving after" in self.log(), SERVING_WITHIN_S, "serving", self.log)

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait_for_end(self, within_s: float = END_WITHIN_S) -> int:
        assert self.process is not None
        return self.process.wait(within_s)

    def end(self) -> None:
        """For a fixture's end: whatever state it is in."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_WITHIN_S)
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def pids(self) -> list[int]:
        """Every process that this installation started, by the run folder in its environment, orphans included."""
        marker = f"TIDEMARK_RUN_DIR={self.run_dir}".encode()
        valkey = ROLES["valkey"].format(**self.ports).encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    command = (entry / "cmdline").read_bytes()
                    if command and (valkey in command or marker in (entry / "environ").read_bytes().split(b"\0")):
                        found.append(int(entry.name))
        return found

    def pid_of(self, role: str) -> int | None:
        """The role's own process: a child of the supervisor."""
        assert self.process is not None
        for pid in self.pids():
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
                if parent == self.process.pid and ROLES[role].format(**self.ports) in command:
                    return pid
        return None

    def answered(self) -> dict[str, float]:
        """Requests by outcome, from the router's own metrics; empty while it is away."""
        with contextlib.suppress(urllib.error.URLError, OSError):
            page = self.get(f"{self.admin}/metrics")
            found: dict[str, float] = {}
            for outcome, value in re.findall(r'tidemark_router_requests_total\{.*?outcome="(\w+)".*?\} (\S+)', page):
                found[outcome] = found.get(outcome, 0) + float(value)
            return found
        return {}

    def get(self, url: str) -> str:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return str(answer.read().decode())

    def rows(self, sql: str) -> list[tuple[object, ...]]:
        with contextlib.closing(sqlite3.connect(f"file:{self.run_dir}/tidemark.sqlite3?mode=ro", uri=True)) as database:
            database.execute("PRAGMA busy_timeout = 5000")
            return database.execute(sql).fetchall()

    def number(self, sql: str) -> float:
        value = self.rows(sql)[0][0]
        return float(value or 0)  # type: ignore[arg-type]

    def report(self, path: Path) -> dict[str, object]:
        return dict(json.loads(path.read_text()))


class Operator:
    """A signed-in administrator's REST client."""

    def __init__(self, installation: Installation) -> None:
        self.client = httpx.Client(base_url=installation.web, timeout=60, trust_env=False)
        password = (installation.run_dir / "admin-password").read_text().strip()
        page = self.client.get("/accounts/login/")
        form = {"login": "admin", "password": password, "csrfmiddlewaretoken": page.cookies["csrftoken"]}
        answer = self.client.post("/accounts/login/", data=form, headers={"Referer": f"{installation.web}/"})
        assert answer.status_code == 302, answer.text[:500]

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self._send("POST", path, body)

    def patch(self, path: str, body: dict[str, Any]) -> Any:
        return self._send("PATCH", path, body)

    def _send(self, method: str, path: str, body: dict[str, Any]) -> Any:
        headers = {"X-CSRFToken": self.client.cookies["csrftoken"], "If-Match": "*"}
        answer = self.client.request(method, f"/api/v1/{path}", json=body, headers=headers)
        assert answer.status_code in (200, 201, 202), f"{path}: {answer.status_code} {answer.text[:1000]}"
        return answer.json()


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def wait_until(
    condition: Callable[[], Any],
    within_s: float,
    what: str,
    context: Callable[[], str] = lambda: "",
    *,
    every_s: float = 0.2,
) -> Any:
    """The condition's first true value. Raises AssertionError naming `what` when it does not come in time."""
    deadline = time.monotonic() + within_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {within_s:.0f} s: {what}\n{context()[-3000:]}"
        time.sleep(every_s)

"""The processes under test: control plane, Valkey, routers and mock workers, each a real one with its own files."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.proxybench.kit import HOME, BenchError, build_kit
from controlplane.supervisor.processes import die_with_parent
from controlplane.supervisor.valkey import server_binary, write_configuration
from router.contract.secrets import FleetKey

ROOT = Path(__file__).resolve().parents[2]
READY_WITHIN_S = 60.0
CSRF = "a" * 32
NOWHERE = "http://127.0.0.1:1"
"""An admin address at which nothing listens: what is sent there is lost."""

SET_UP = """
import json, sys
from django.db import transaction
from django.test import Client
from controlplane.fleet.services import create_pool
from controlplane.fleet.models import Worker, WorkerPool
from controlplane.namespaces.key_services import issue_key
from controlplane.namespaces.services import create_namespace
from controlplane.tenants.member_services import grant_role
from controlplane.tenants.models import User
from controlplane.tenants.roles import Role
from controlplane.tenants.services import create_tenant
wanted = json.loads(sys.stdin.read())
actor = "system:benchmark"
with transaction.atomic():
    create_tenant(actor=actor, slug="acme", name="Acme")
    for slug in ("serves", "denies"):
        on_stale = "deny" if slug == "denies" else "serve"
        create_namespace(actor=actor, tenant="acme", slug=slug, on_stale=on_stale)
    create_pool(actor=actor, slug="pool", models=["m"])
    for port in wanted["worker_ports"]:
        pool = WorkerPool.objects.get(slug="pool")
        Worker.objects.create(pool=pool, slug=f"w{port}", url=f"http://127.0.0.1:{port}")
    keys = [issue_key(actor=actor, namespace="acme/serves", name=str(n)).text for n in range(wanted["keys"])]
    steady = issue_key(actor=actor, namespace="acme/serves", name="steady").text
    denies = issue_key(actor=actor, namespace="acme/denies", name="denies").text
    user = User.objects.create_user("benchmark", password=None)
    grant_role(actor=actor, username="benchmark", role=Role.ADMIN)
client = Client()
client.force_login(user)
print(json.dumps({"keys": keys, "steady": steady, "denies": denies, "session": client.cookies["sessionid"].value}))
"""


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


@dataclass
class RouterProcess:
    name: str
    port: int
    admin_port: int
    process: subprocess.Popen[bytes] | None = None


@dataclass
class Fleet:
    """Started by `running`; ends with it."""

    folder: Path
    database_url: str
    routers: list[RouterProcess]
    web_port: int
    worker_ports: list[int]
    fleet_key: str = field(default_factory=FleetKey.generate_hex, repr=False)
    redis_url: str = ""
    keys: list[str] = field(default_factory=list, repr=False)
    steady: str = field(default="", repr=False)
    denies: str = field(default="", repr=False)
    session: str = field(default="", repr=False)
    web: subprocess.Popen[bytes] | None = None
    valkey: subprocess.Popen[bytes] | None = None
    _started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, argv: list[str], name: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        parent = os.getpid()
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                argv,
                cwd=ROOT,
                env={**self.environment(), **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: die_with_parent(signal.SIGKILL, parent),
            )
        self._started.append(process)
        return process

    def environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TIDEMARK_")}
        inherited.pop("REDIS_URL", None)
        return {
            **inherited,
            "TIDEMARK_RUN_DIR": str(self.folder / "run"),
            "TIDEMARK_FLEET_KEY": self.fleet_key,
            "TIDEMARK_DATABASE_URL": self.database_url,
            "TIDEMARK_REDIS_URL": self.redis_url,
            "TIDEMARK_LOG_LEVEL": "WARNING",
            "OMP_NUM_THREADS": "1",
        }

    def start_valkey(self) -> None:
        binary = server_binary()
        if not binary:
            raise BenchError("a Valkey or Redis server is needed")
        port = free_ports(1)[0]
        configuration = write_configuration(self.folder, port=port, password="benchmark")
        self.valkey = self.start([binary, str(configuration)], "valkey")
        self.redis_url = f"redis://:benchmark@127.0.0.1:{port}/0"
        _until(lambda: _listens(port), "Valkey")

    def start_web(self) -> None:
        command = ["-m", "uvicorn", "controlplane.asgi:application", "--host", "127.0.0.1", "--port"]
        options = [str(self.web_port), "--no-access-log", "--log-level", "warning"]
        self.web = self.start([sys.executable, *command, *options], "web")
        _until(lambda: _listens(self.web_port), "the web server")

    def start_router(self, router: RouterProcess, *, pushes: bool = True) -> None:
        """Without `pushes` it has no Valkey, and names an admin address at which nothing listens."""
        env = {
            "TIDEMARK_CONTROL_URL": f"http://127.0.0.1:{self.web_port}",
            "TIDEMARK_ROUTER_ID": router.name,
            "TIDEMARK_ROUTER_PORT": str(router.port),
            "TIDEMARK_ROUTER_ADMIN_PORT": str(router.admin_port),
            "TIDEMARK_ROUTER_STATE_DIR": str(self.folder / router.name),
        }
        if not pushes:
            env |= {"TIDEMARK_REDIS_URL": "", "TIDEMARK_ROUTER_ADMIN_URL": NOWHERE}
        router.process = self.start([sys.executable, "-m", "router"], router.name, env)
        _until(lambda: _is_ready(router), f"the router {router.name}")

    def restart_routers(self, *, pushes: bool) -> None:
        for router in self.routers:
            stop(router.process, signal.SIGTERM)
            self.start_router(router, pushes=pushes)

    def manage(self, *arguments: str, text: str = "") -> str:
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT,
            env=self.environment(),
            input=text,
            capture_output=True,
            text=True,
            timeout=300,
        )
        if done.returncode != 0:
            raise BenchError(done.stderr[-2000:])
        return done.stdout

    def set_up(self, *, keys: int) -> None:
        self.manage("migrate", "-v", "0")
        wanted = json.dumps({"keys": keys, "worker_ports": self.worker_ports})
        made = json.loads(self.manage("shell", "-v", "0", "-c", SET_UP, text=wanted).splitlines()[-1])
        self.keys, self.steady, self.denies = made["keys"], made["steady"], made["denies"]
        self.session = made["session"]

    def client(self) -> httpx.AsyncClient:
        """Signed in as an administrator."""
        return httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{self.web_port}",
            cookies={"sessionid": self.session, "csrftoken": CSRF},
            headers={"x-csrftoken": CSRF},
            timeout=30,
            trust_env=False,
        )

    def take_key(self) -> str:
        """A key that was not revoked yet."""
        if not self.keys:
            raise BenchError("every key that was made for this run is used up")
        return self.keys.pop()

    def stop(self) -> None:
        for process in reversed(self._started):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            stop(process, signal.SIGKILL)


def stop(process: subprocess.Popen[bytes] | None, number: signal.Signals) -> None:
    if process is None or process.poll() is not None:
        return
    process.send_signal(number)
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(5)


@contextlib.contextmanager
def running(*, keys: int, routers: int = 2, workers: int = 2, database_url: str = "") -> Iterator[Fleet]:
    """A fleet that serves. SQLite unless a `database_url` of an empty PostgreSQL database is given."""
    build_kit()
    ports = free_ports(1 + workers + 2 * routers)
    web_port, worker_ports, rest = ports[0], _neighbours(workers), ports[1 + workers :]
    made = [RouterProcess(f"router-{n + 1}", rest[2 * n], rest[2 * n + 1]) for n in range(routers)]
    folder = Path(tempfile.mkdtemp(prefix="tidemark-revocation-"))
    fleet = Fleet(folder, database_url, made, web_port, worker_ports)
    try:
        fleet.start([str(HOME / "backend"), str(worker_ports[0]), str(workers)], "backend")
        fleet.start_valkey()
        fleet.set_up(keys=keys)
        fleet.start_web()
        for router in fleet.routers:
            fleet.start_router(router)
        yield fleet
    finally:
        fleet.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _neighbours(count: int) -> list[int]:
    """The mock workers listen on ports in a row."""
    for _ in range(200):
        first = free_ports(1)[0]
        wanted = range(first, first + count)
        if first + count < 65_536 and not any(_listens(port) for port in wanted):
            return list(wanted)
    raise BenchError("no ports in a row are free")


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _is_ready(router: RouterProcess) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        answer: Any = httpx.get(f"http://127.0.0.1:{router.admin_port}/readyz", timeout=1, trust_env=False)
        return bool(answer.status_code == 200)
    return False


def _until(condition: Any, what: str) -> None:  # Any: a callable without arguments
    give_up_at = time.monotonic() + READY_WITHIN_S
    while not condition():
        if time.monotonic() > give_up_at:
            raise BenchError(f"{what} does not come up")
        time.sleep(0.02)

"""What `manage.py up` runs: one Role for each process, with its command line and environment."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from controlplane.supervisor.config import Addresses
from controlplane.supervisor.processes import Role

CELERY_CONCURRENCY = 3
"""Ingestion (each second) and polling (each two) side by side, and one that mostly waits for a simulation's process;
more would only compete for SQLite's one writer."""
ROUTER_DRAIN_S = 4
"""The supervisor ends everything within about ten seconds; requests under way get this long of them."""
WEB_DRAIN_S = 3


@dataclass(frozen=True)
class Surroundings:
    """What every role has to know."""

    addresses: Addresses
    run_dir: Path
    redis_url: str
    fleet_key_given: bool
    """The environment already names the fleet key; else it is the file in the run folder."""

    def environment(self) -> dict[str, str]:
        return {
            "TIDEMARK_RUN_DIR": str(self.run_dir),
            "TIDEMARK_REDIS_URL": self.redis_url,
            "PYTHONUNBUFFERED": "1",
            # NumPy's thread pools would cost each process megabytes and help none of them.
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }


def valkey(binary: str, configuration: Path) -> Role:
    # SIGTERM lets it write out its last second; it has no children to leave behind.
    return Role("valkey", [binary, str(configuration)], death_signal=signal.SIGTERM)


def web(around: Surroundings) -> Role:
    address = around.addresses
    command = ["-m", "uvicorn", "controlplane.asgi:application", "--host", address.web_host]
    options = ["--port", str(address.web_port), "--no-access-log", "--log-level", "warning"]
    limits = ["--timeout-graceful-shutdown", str(WEB_DRAIN_S), "--ws-max-size", str(64 * 1024), "--no-server-header"]
    # The dashboard packs what it sends once for all sockets; packing again for each would cost a core.
    limits += ["--ws-per-message-deflate", "false"]
    return Role("web", [sys.executable, *command, *options, *limits], around.environment())


def celery_worker(around: Surroundings) -> Role:
    # Prefork, since only there time limits hold.
    pool = ["--pool", "prefork", "--concurrency", str(CELERY_CONCURRENCY), "-Q", "celery"]
    quiet = ["--without-gossip", "--without-mingle", "--loglevel", "WARNING"]
    return Role("celery", _celery("worker", *pool, *quiet), around.environment())


def beat(around: Surroundings) -> Role:
    # No pid file: one left behind by a killed beat would keep the next from starting.
    return Role("beat", _celery("beat", "--loglevel", "WARNING", "--pidfile", ""), around.environment())


def kv_events(around: Surroundings) -> Role:
    return Role("kv-events", [sys.executable, "manage.py", "kv_events"], around.environment())


def router(around: Surroundings) -> Role:
    environment = around.environment() | {
        "TIDEMARK_CONTROL_URL": around.addresses.web_url,
        "TIDEMARK_ROUTER_ID": os.environ.get("TIDEMARK_ROUTER_ID", "router-1"),
        "TIDEMARK_ROUTER_STATE_DIR": os.environ.get("TIDEMARK_ROUTER_STATE_DIR", str(around.run_dir / "router")),
        "TIDEMARK_ROUTER_DRAIN_S": os.environ.get("TIDEMARK_ROUTER_DRAIN_S", str(ROUTER_DRAIN_S)),
    }
    if not around.fleet_key_given:
        environment["TIDEMARK_FLEET_KEY_FILE"] = str(around.run_dir / "fleet-key")
    return Role("router", [sys.executable, "-m", "router"], environment)


def _celery(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "celery", "-A", "controlplane.celery", "--quiet", *arguments]

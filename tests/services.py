"""Servers and programs the tests need: a private Valkey, a private PostgreSQL, a Chromium, a C compiler, Pango.

An installed one is used; `install_missing` adds them by apt when that is possible (root on Debian or Ubuntu).
"""

from __future__ import annotations

import contextlib
import ctypes.util
import glob
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from controlplane.supervisor.processes import die_with_parent
from controlplane.supervisor.valkey import server_binary, write_configuration

READY_WITHIN_S = 20
POSTGRES_MAJOR_MIN = 15
PASSWORD = "test"
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
APT_PACKAGES = {
    "chromium": "chromium",
    "postgres": "postgresql",
    "compiler": "build-essential",
    "pango": "libpango-1.0-0 libpangoft2-1.0-0 libharfbuzz-subset0",
}
IN_CI = os.environ.get("CI", "").lower() in ("1", "true")
"""There a test that cannot run is a failure."""


def free_port() -> int:
    """A port that nothing listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def chromium() -> str | None:
    configured = os.environ.get("TIDEMARK_CHROMIUM")
    return configured or next((path for name in CHROMIUM_NAMES if (path := shutil.which(name))), None)


def c_compiler() -> str | None:
    return shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc")


def pango() -> str | None:
    """What WeasyPrint draws PDF with: all of its libraries, or None."""
    found = [ctypes.util.find_library(name) for name in ("pango-1.0", "pangoft2-1.0", "harfbuzz-subset")]
    return found[0] if all(found) else None


def postgres_binaries() -> Path | None:
    """The folder with initdb and postgres, newest first."""
    folders = [Path(path) for path in glob.glob("/usr/lib/postgresql/*/bin")]
    folders = [folder for folder in folders if folder.parent.name.isdigit()]
    folders.sort(key=lambda folder: int(folder.parent.name), reverse=True)
    if found := shutil.which("initdb"):
        folders.append(Path(found).parent)
    return next((folder for folder in folders if (folder / "initdb").exists() and (folder / "postgres").exists()), None)


def install_missing() -> list[str]:
    """Tries apt for what is not there. Returns what is missing afterwards."""
    wanted = missing()
    apt = shutil.which("apt-get")
    if wanted and apt and os.geteuid() == 0:
        packages = [package for name in wanted for package in APT_PACKAGES[name].split()]
        print(f"installing {', '.join(packages)} with apt", flush=True)
        quiet = {"stdout": subprocess.DEVNULL, "env": {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}}
        subprocess.run([apt, "update", "-qq"], **quiet)
        subprocess.run([apt, "install", "-y", "-qq", "--no-install-recommends", *packages], **quiet)
    return missing()


def missing() -> list[str]:
    found = {"chromium": chromium(), "postgres": postgres_binaries(), "compiler": c_compiler(), "pango": pango()}
    return [name for name, path in found.items() if path is None]


@contextlib.contextmanager
def private_valkey(folder: Path) -> Iterator[str]:
    """URL of a Valkey of one's own, ended on exit and with this process."""
    binary = server_binary()
    assert binary, "no Valkey server found"
    port = free_port()
    configuration = write_configuration(folder, port=port, password=PASSWORD)
    with _server([binary, str(configuration)], folder / "log"):
        _wait_for_port(port)
        yield f"redis://:{PASSWORD}@127.0.0.1:{port}/0"


@contextlib.contextmanager
def private_postgres() -> Iterator[str]:
    """URL of a PostgreSQL of one's own: fresh data folder, own port, durability off, gone on exit."""
    binaries = postgres_binaries()
    assert binaries, "no PostgreSQL found"
    folder = Path(tempfile.mkdtemp(prefix="tidemark-pg-"))
    port = free_port()
    try:
        # The server refuses to run as root.
        account = "postgres" if os.geteuid() == 0 else None
        if account:
            shutil.chown(folder, account)
        run_as = {"user": account, "group": pwd.getpwnam(account).pw_gid, "extra_groups": []} if account else {}
        initdb = [str(binaries / "initdb"), "-D", f"{folder}/data", "-U", "tidemark", "-A", "trust", "-E", "UTF8"]
        subprocess.run([*initdb, "--no-sync"], check=True, stdout=subprocess.DEVNULL, cwd=folder, **run_as)
        options = ["-c", "fsync=off", "-c", "full_page_writes=off", "-c", "synchronous_commit=off"]
        listen = ["-p", str(port), "-k", str(folder), "-h", "127.0.0.1"]
        # SIGINT is its "fast" shutdown: sessions are ended, nothing is waited for.
        server = [str(binaries / "postgres"), "-D", f"{folder}/data", *listen, *options]
        with _server(server, folder / "log", stop_signal=signal.SIGINT, cwd=folder, **run_as):
            _wait_for_postgres(binaries, port)
            yield f"postgresql://tidemark@127.0.0.1:{port}/postgres"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _server(argv: list[str], log: Path, *, stop_signal: int = signal.SIGTERM, **how: object) -> Iterator[None]:
    parent = os.getpid()
    with open(log, "wb") as output:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(stop_signal, parent),
            **how,
        )
    try:
        yield
    finally:
        process.send_signal(stop_signal)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)


def _wait_for_port(port: int) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise AssertionError(f"nothing listens on port {port} after {READY_WITHIN_S} s")


def _wait_for_postgres(binaries: Path, port: int) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    ask = [str(binaries / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
    while time.monotonic() < deadline:
        if subprocess.run(ask).returncode == 0:
            return
        time.sleep(0.1)
    raise AssertionError(f"PostgreSQL on port {port} is not ready after {READY_WITHIN_S} s")

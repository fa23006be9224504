"""Where and with what a report was made: machine, versions, commit, which form of the router's code."""

from __future__ import annotations

import os
import platform
import subprocess
import sysconfig
import time
from pathlib import Path
from typing import Any

from router.native.finder import Code
from router.native.modules import build_folder

ROOT = Path(__file__).parent.parent


def about() -> dict[str, Any]:  # Any: JSON
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": _git("rev-parse", "--short=12", "HEAD"),
        "changed_files": len(_git("status", "--porcelain", "--untracked-files=no").splitlines()),
        "python": f"{platform.python_implementation()} {platform.python_version()}, {_optimisation()}",
        "router_code": code_to_run(),
        "machine": {
            "cpu": _cpu_name(),
            "cores": os.cpu_count(),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        },
        "load_average": os.getloadavg()[0],
    }


def code_to_run() -> Code:
    """What a router started here serves with: `auto` takes the build that fits the sources."""
    built = (build_folder() / "manifest.json").exists()
    return "compiled" if built and os.environ.get("TIDEMARK_ROUTER_COMPILED") != "off" else "interpreted"


def _optimisation() -> str:
    """What costs an interpreter 20–35 % here where it is missing."""
    built_so = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    return "profile-guided build" if built_so else "built without profile-guided optimisation"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=ROOT)
    return done.stdout.strip() if done.returncode == 0 else ""


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())

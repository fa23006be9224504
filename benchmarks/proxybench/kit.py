"""The C kit (a mock of vLLM workers and a load generator), built where it is used, and processes pinned to a core."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
HOME = Path(os.environ.get("TIDEMARK_BENCH_HOME", str(Path.home() / ".cache" / "tidemark-bench")))
"""Built tools, peers' environments and run files: nothing of it lands in the project."""
PROXY_CORE = 0
LOAD_CORE = 1
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class BenchError(Exception):
    """Why the benchmark cannot run."""


def build_kit() -> None:
    """Compile backend and load generator when they are missing or older than their source."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise BenchError("a C compiler is needed (cc or gcc)")
    (HOME / "run").mkdir(parents=True, exist_ok=True)
    for name in ("backend", "lg"):
        source, program = HERE / f"{name}.c", HOME / name
        if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
            subprocess.run([compiler, "-O2", "-w", "-o", str(program), str(source), "-lm"], check=True)


@dataclass
class Pinned:
    """A process group on one core."""

    process: subprocess.Popen[bytes]

    def cpu_s(self) -> float:
        return sum(_cpu_s(pid) for pid in _family(self.process.pid))

    def rss_mib(self) -> float:
        return sum(_rss_kib(pid) for pid in _family(self.process.pid)) / 1024

    def stop(self) -> None:
        for number, wait_s in ((signal.SIGTERM, 8), (signal.SIGKILL, 8)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            try:
                self.process.wait(wait_s)
                return
            except subprocess.TimeoutExpired:
                continue


def start_pinned(argv: Sequence[str], *, core: int, name: str, env: Mapping[str, str] | None = None) -> Pinned:
    log = (HOME / "run" / f"{name}.log").open("wb")
    process = subprocess.Popen(
        ["taskset", "-c", str(core), *argv],
        env={**os.environ, **(env or {})},
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        cwd=HERE.parent.parent,
    )
    return Pinned(process)


def start_backend(ports: Sequence[int]) -> Pinned:
    return start_pinned([str(HOME / "backend"), str(ports[0]), str(len(ports))], core=LOAD_CORE, name="backend")


def generate_load(port: int, *options: str, key: str | None = None, core: int = LOAD_CORE) -> dict[str, Any]:
    """One run of the load generator: its JSON figures."""
    argv = ["taskset", "-c", str(core), str(HOME / "lg"), "-p", str(port), *options]
    if key is not None:
        argv += ["-H", f"Authorization: Bearer {key}"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    try:
        figures: dict[str, Any] = json.loads(done.stdout)
        return figures
    except ValueError:
        raise BenchError(f"the load generator failed: {done.stderr[-300:]}") from None


def wait_for_answer(port: int, *, key: str | None, timeout_s: float = 30.0) -> bool:
    """True once a chat request gets 200."""
    body = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", data=body, headers=headers)
    give_up_at = time.monotonic() + timeout_s
    while time.monotonic() < give_up_at:
        try:
            with urllib.request.urlopen(request, timeout=3) as answer:
                if answer.status == 200:
                    return True
        except (OSError, urllib.error.URLError):
            time.sleep(0.2)
    return False


def _family(pid: int) -> list[int]:
    found = [pid]
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            children = Path(f"/proc/{pid}/task/{task}/children").read_text().split()
            for child in children:
                found += _family(int(child))
    return found


def _cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _rss_kib(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1])
    return 0

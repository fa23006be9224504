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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
    log: Path
    _afterwards: list[Callable[[], None]] = field(default_factory=list)

    def at_stop(self, action: Callable[[], None]) -> None:
        self._afterwards.append(action)

    def cpu_s(self) -> float:
        return sum(_cpu_s(pid) for pid in _family(self.process.pid))

    def rss_mib(self) -> float:
        return sum(_rss_kib(pid) for pid in _family(self.process.pid)) / 1024

    def stop(self) -> None:
        self._end()
        for action in self._afterwards:
            action()

    def _end(self) -> None:
        for number, wait_s in ((signal.SIGTERM, 8), (signal.SIGKILL, 8)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            try:
                self.process.wait(wait_s)
                return
            except subprocess.TimeoutExpired:
                continue


@dataclass
class Peer:
    """A running proxy; `key` is the API key it asks for."""

    name: str
    port: int
    running: Pinned
    key: str | None = None
    version: str = ""


def start_pinned(argv: Sequence[str], *, core: int, name: str, env: Mapping[str, str] | None = None) -> Pinned:
    """`env` in place of this process's own."""
    log = HOME / "run" / f"{name}.log"
    process = subprocess.Popen(
        ["taskset", "-c", str(core), *argv],
        env=dict(env if env is not None else os.environ),
        stdout=log.open("wb"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
        cwd=HERE.parent.parent,
    )
    return Pinned(process, log)


@dataclass(frozen=True)
class Worker:
    """What each mock worker is: the size of its prefix cache and how long it takes; the defaults answer at once."""

    cache_blocks: int = 0
    """Of 64 characters; 0 = no cache, and no cached tokens in the usage."""
    prefill_us_a_token: int = 0
    """One request after another; a token is 4 characters."""
    decode_us: int = 0


def start_backend(ports: Sequence[int], worker: Worker | None = None) -> Pinned:
    worker = worker or Worker()
    sizes = (worker.cache_blocks, worker.prefill_us_a_token, worker.decode_us)
    argv = [str(HOME / "backend"), str(ports[0]), str(len(ports)), *map(str, sizes)]
    return start_pinned(argv, core=LOAD_CORE, name=f"backend-{ports[0]}")


def ask_backend(port: int, path: str) -> Any:  # Any: JSON
    """`/stats`: what each worker of this backend saw; `/reset`: forget it, and empty the caches."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return json.load(answer)


def generate_load(port: int, *options: str, key: str | None = None, core: int = LOAD_CORE) -> dict[str, Any]:
    """One run of the load generator: its JSON figures. Any: numbers, and counts by status."""
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

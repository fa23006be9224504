"""One child process: started in a session of its own, bound to the life of its parent, ended with all it started."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from controlplane.config import BASE_DIR

PR_SET_PDEATHSIG = 1
STARTED_FIELD = 19
"""Of /proc/<pid>/stat, counted after the program's name: `starttime`, in clock ticks since boot (proc(5))."""
OUTPUT_END_WITHIN_S = 1.0
"""What a process wrote last is still in its pipe when it has ended."""
LINE_BYTES_MAX = 8 * 1024
"""A longer line is shown in pieces."""

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


@dataclass(frozen=True)
class Role:
    name: str
    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)
    """Beside the supervisor's own environment."""
    death_signal: int = signal.SIGKILL
    """What the kernel sends it when the supervisor dies without a word."""
    runs_once: bool = False
    """Its end with status 0 is its end, not a crash."""
    shows_stdout: bool = True
    """False: only what it writes to standard error belongs to the common log."""


def own_age_s() -> float:
    """Seconds since this process began, interpreter start and imports included. 0 where /proc does not say."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[STARTED_FIELD])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        return 0.0


def die_with_parent(death_signal: int, parent_pid: int) -> None:
    """Asks the kernel to signal this process when its parent's thread ends. Linux only; elsewhere does nothing."""
    if _libc is None:
        return
    _libc.prctl(PR_SET_PDEATHSIG, death_signal)
    if os.getppid() != parent_pid:  # it died before the kernel was asked
        os.kill(os.getpid(), death_signal)


async def spawn(role: Role, output: int, *, cwd: Path = BASE_DIR) -> asyncio.subprocess.Process:
    """Starts the role writing to the file descriptor `output`. Raises OSError when the program cannot be started.

    Call it on the main thread, whose end is the parent's. The pipe is the caller's, not asyncio's, since asyncio waits
    for the end of its pipes before it tells of a process's end, and a grandchild may hold them open.
    """
    return await asyncio.create_subprocess_exec(
        *role.argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=output if role.shows_stdout else asyncio.subprocess.DEVNULL,
        stderr=output,
        cwd=cwd,
        env={**os.environ, **role.env},
        start_new_session=True,  # a Ctrl-C in the terminal reaches the supervisor alone, which ends all in order
        preexec_fn=partial(die_with_parent, role.death_signal, os.getpid()),
    )


@contextlib.asynccontextmanager
async def output_shown(show: Callable[[str], None]) -> AsyncIterator[int]:
    """The writing end of a pipe whose lines are handed to `show`; the last ones for OUTPUT_END_WITHIN_S after exit."""
    reading, writing = os.pipe()
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reading, "rb", 0)
    )
    relay = asyncio.create_task(relay_lines(reader, show))
    try:
        yield writing
    finally:
        os.close(writing)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(relay, timeout=OUTPUT_END_WITHIN_S)
        transport.close()


async def relay_lines(output: asyncio.StreamReader, show: Callable[[str], None]) -> None:
    """Hands each line to `show` until the output ends."""
    rest = b""
    while chunk := await output.read(LINE_BYTES_MAX):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            show(line.decode(errors="replace").rstrip())
        if len(rest) >= LINE_BYTES_MAX:
            show(rest.decode(errors="replace"))
            rest = b""
    if rest:
        show(rest.decode(errors="replace"))


def signal_role(process: asyncio.subprocess.Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


def kill_group(pid: int) -> None:
    """Ends what is left of the child's process group, also after the child itself is gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)

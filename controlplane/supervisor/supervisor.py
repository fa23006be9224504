"""Keeps roles running: starts them, shows their output, restarts those that die, ends all of them.

A role that dies is named and started again after 1, 2, 4 … 30 s; a minute of life earns a fresh count. Stopping asks
everyone at once (SIGTERM), the embedded Valkey last since the others still write to it, and kills what is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from dataclasses import dataclass, field
from functools import partial

from controlplane.supervisor.processes import Role, kill_group, output_shown, signal_role, spawn
from controlplane.supervisor.terminal import Terminal

BACK_OFF_FIRST_S = 1.0
BACK_OFF_MAX_S = 30.0
STEADY_AFTER_S = 60.0
STOP_WITHIN_S = 7.0
STOP_LAST_WITHIN_S = 3.0


@dataclass
class Running:
    """A role under supervision."""

    role: Role
    task: asyncio.Task[None] | None = None
    process: asyncio.subprocess.Process | None = None
    stopping: bool = False
    restarts: int = 0
    exit_status: int | None = None
    """Of a role that runs once, when it has ended."""
    finished: asyncio.Event = field(default_factory=asyncio.Event)


class Supervisor:
    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._running: dict[str, Running] = {}

    def start(self, role: Role) -> None:
        entry = self._running[role.name] = Running(role)
        entry.task = asyncio.create_task(self._keep_running(entry), name=f"supervise {role.name}")

    def restarts(self) -> dict[str, int]:
        """Role → how often it had to be started again, for the roles where that happened."""
        return {name: entry.restarts for name, entry in self._running.items() if entry.restarts}

    def pids(self) -> dict[str, int]:
        """Role → process id, of the roles that run at this moment."""
        return {
            name: entry.process.pid
            for name, entry in self._running.items()
            if entry.process is not None and entry.process.returncode is None
        }

    async def wait_for_end_of(self, name: str) -> int | None:
        """Exit status of a role that runs once; None when it was ended from here."""
        await self._running[name].finished.wait()
        return self._running[name].exit_status

    async def stop(self, names: list[str]) -> None:
        """Ends these roles only, and keeps them ended."""
        entries = [self._running[name] for name in names if name in self._running]
        await self._end(entries, within_s=STOP_WITHIN_S)

    async def stop_all(self, *, last: str = "valkey") -> None:
        """Ends everything within STOP_WITHIN_S + STOP_LAST_WITHIN_S."""
        entries = list(self._running.values())
        await self._end([entry for entry in entries if entry.role.name != last], within_s=STOP_WITHIN_S)
        await self._end([entry for entry in entries if entry.role.name == last], within_s=STOP_LAST_WITHIN_S)

    def kill_all(self) -> None:
        """At once, without a farewell."""
        for entry in self._running.values():
            entry.stopping = True
            if entry.process is not None:
                kill_group(entry.process.pid)

    async def _keep_running(self, entry: Running) -> None:
        """One role's life, over all of its processes, until it is stopped or has finished its one run."""
        back_off_s = BACK_OFF_FIRST_S
        while True:
            started_s = time.monotonic()
            status = await self._run_once(entry)
            if entry.stopping:
                return
            if entry.role.runs_once and status == 0:
                entry.exit_status = status
                entry.finished.set()
                return
            if time.monotonic() - started_s >= STEADY_AFTER_S:
                back_off_s = BACK_OFF_FIRST_S
            self._terminal.say(f"{entry.role.name} {ending_in_words(status)}; starting it again in {back_off_s:.0f} s")
            await asyncio.sleep(back_off_s)
            back_off_s = min(back_off_s * 2, BACK_OFF_MAX_S)
            entry.restarts += 1

    async def _run_once(self, entry: Running) -> int | None:
        """Exit status (negative: signal), or None when the program could not be started."""
        async with output_shown(partial(self._terminal.line, entry.role.name)) as output:
            try:
                entry.process = process = await spawn(entry.role, output)
            except OSError as error:
                self._terminal.say(f"{entry.role.name} cannot be started: {error}")
                return None
            try:
                return await process.wait()
            finally:
                kill_group(process.pid)

    async def _end(self, entries: list[Running], *, within_s: float) -> None:
        for entry in entries:
            entry.stopping = True
            if entry.process is None or entry.process.returncode is not None:
                if entry.task is not None:
                    entry.task.cancel()
            else:
                signal_role(entry.process, signal.SIGTERM)
        ends = [asyncio.create_task(self._farewell(entry, within_s)) for entry in entries]
        if ends:
            await asyncio.gather(*ends)

    async def _farewell(self, entry: Running, within_s: float) -> None:
        process = entry.process
        if process is not None and process.returncode is None:
            try:
                await asyncio.wait_for(process.wait(), timeout=within_s)
            except TimeoutError:
                self._terminal.say(f"{entry.role.name} did not end within {within_s:.0f} s; killed")
                kill_group(process.pid)
                # Its ports are free only when it is gone: the next start may follow at once.
                await process.wait()
            kill_group(process.pid)
        if entry.task is not None:
            entry.task.cancel()
            with contextlib.suppress(asyncio.CancelledError, TimeoutError):
                await asyncio.wait_for(entry.task, timeout=2)
        entry.finished.set()


def ending_in_words(status: int | None) -> str:
    if status is None:
        return "could not be started"
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"

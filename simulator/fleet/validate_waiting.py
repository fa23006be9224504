"""How long a worker's threads waited for a core that something else had: what a busy machine adds to its times.

Linux counts it for every thread. A request goes through a worker's threads one after the other, so that what they all
waited while it was answered is, but for overlaps, what it would have been faster on free cores.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
NANOSECONDS = 1e-9


def waited_for_cores_s(pid: int) -> float:
    """Of a process and all its descendants, since they began. 0 where the system does not tell, or it is gone."""
    total_ns = 0
    for each in _family(pid):
        for schedstat in PROC.glob(f"{each}/task/*/schedstat"):
            with suppress(OSError, ValueError, IndexError):
                total_ns += int(schedstat.read_text().split()[1])
    return total_ns * NANOSECONDS


def _family(pid: int) -> list[int]:
    found, todo = [], [pid]
    while todo:
        found.append(todo.pop())
        for children in PROC.glob(f"{found[-1]}/task/*/children"):
            with suppress(OSError):
                todo += map(int, children.read_text().split())
    return found

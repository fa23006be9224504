"""Runs side by side: order, progress, refusals, deaths, and no process left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from simulator.fleet.side_by_side import Counted, side_by_side


def squared(task: int, counted: Counted) -> int:
    for _ in range(task):
        counted(1)
    return task * task


@pytest.mark.parametrize("processes", [1, 2, 8])
def test_results_keep_their_order_and_progress_adds_up(processes: int) -> None:
    told = dict.fromkeys([5, 0, 3, 4], 0)

    def further(task: int, count: int) -> None:
        told[task] += count

    assert side_by_side([5, 0, 3, 4], squared, further, processes=processes) == [25, 0, 9, 16]
    assert told == {5: 5, 0: 0, 3: 3, 4: 4}


@pytest.mark.parametrize("processes", [1, 3])
def test_a_refusal_is_told_as_it_is(processes: int) -> None:
    def run(task: int, counted: Counted) -> int:
        if task == 2:
            raise ValueError("nothing fits")
        return task

    with pytest.raises(ValueError, match=r"^nothing fits$"):
        side_by_side([1, 2, 3], run, lambda *_: None, processes=processes)


def test_one_that_dies_ends_all_with_words() -> None:
    began_s = time.monotonic()

    def run(task: int, counted: Counted) -> int:
        if task == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
        return task

    with pytest.raises(RuntimeError, match=r"ended early \(status -9\)"):
        side_by_side([1, 2], run, lambda *_: None, processes=2)
    assert time.monotonic() - began_s < 30


ORPHANS = """
import os, time
from simulator.fleet.side_by_side import side_by_side

def run(task, counted):
    print(os.getpid(), flush=True)
    while True:
        time.sleep(0.05)
        counted(1)

side_by_side([1, 2], run, lambda *_: None, processes=2)
"""


def test_none_outlives_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        children = [int(parent.stdout.readline()) for _ in range(2)]
        parent.kill()
    deadline = time.monotonic() + 30
    while any(map(_runs, children)):
        assert time.monotonic() < deadline, "a simulation goes on without its parent"
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False

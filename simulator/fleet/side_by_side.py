"""Independent runs of one simulation side by side: a process each, begun with all that its parent has loaded.

A child tells its parent how many requests further it is, then its result, through a pipe. With its parent gone the pipe
is broken, and the child ends at its next word.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

type Counted = Callable[[int], None]
"""Takes how many requests more were simulated."""


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def side_by_side[Task, Result](
    tasks: Sequence[Task],
    run: Callable[[Task, Counted], Result],
    told: Callable[[Task, int], None],
    *,
    processes: int,
) -> list[Result]:
    """The results in the order of the tasks. `told` hears, here, how many requests a task is further.

    At most `processes` at a time, which share this one's memory limit; one: in this process. Raises ValueError of a run
    as it is, and RuntimeError where a process ended without a result.
    """
    if min(processes, len(tasks)) <= 1:
        return [run(task, lambda count, task=task: told(task, count)) for task in tasks]  # type: ignore[misc]
    waiting = deque(range(len(tasks)))
    results: dict[int, Result] = {}
    running: dict[Connection, tuple[int, BaseProcess]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                index = waiting.popleft()
                pipe, process = _begun(run, tasks[index], processes)
                running[pipe] = index, process
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                pipe = ready
                index, process = running[pipe]
                try:
                    word = pipe.recv()
                except EOFError:
                    process.join()
                    why = "it needed more memory or time than it may have"
                    raise RuntimeError(f"a simulation ended early (status {process.exitcode}): {why}") from None
                if isinstance(word, int):
                    told(tasks[index], word)
                    continue
                result, refusal = word
                if refusal is not None:
                    raise ValueError(refusal)
                results[index] = result
                process.join()
                pipe.close()
                del running[pipe]
    finally:
        for pipe, (_, process) in running.items():
            process.kill()
            process.join()
            pipe.close()
    return [results[index] for index in range(len(tasks))]


def _begun[Task, Result](
    run: Callable[[Task, Counted], Result], task: Task, processes: int
) -> tuple[Connection, BaseProcess]:
    forked = multiprocessing.get_context("fork")
    heard, told = forked.Pipe(duplex=False)
    process = forked.Process(target=_child, args=(run, task, told, heard, processes), daemon=True)
    process.start()
    told.close()
    return heard, process


def _child[Task, Result](
    run: Callable[[Task, Counted], Result], task: Task, told: Connection, heard: Connection, processes: int
) -> None:
    heard.close()  # or the pipe would never break
    _share_memory(processes)
    try:
        try:
            told.send((run(task, told.send), None))
        except ValueError as error:
            told.send((None, str(error)))
        told.close()
    except BrokenPipeError:
        os._exit(1)


def _share_memory(processes: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_AS, (soft // processes, hard))

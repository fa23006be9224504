"""The simulator's command in a process of its own: nice, bounded in time and memory, ended with its caller.

Nothing but figures and keyed hashes goes in, and JSON lines come out. When the caller's process dies, the pipe breaks
and the command ends at its next line.
"""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import msgspec
from django.conf import settings

NICENESS = 10
SECONDS_MAX = 220
"""Of the wall clock: a whole question."""
MEMORY_BYTES_MAX = 4 * 1024**3
"""Of address space."""
LINE_BYTES_MAX = 4 * 1024 * 1024
LOOKED_EVERY_S = 0.5
ENDED_WITHIN_S = 5.0
WORDS_MAX = 250
PREFIX = "what-if: "

Message = dict[str, Any]


class NoAnswer(Exception):
    """The command ended without an answer; the message says why, fit for the asker."""


def messages(
    trace: Path, question: Mapping[str, Any], *, seconds_max: float = SECONDS_MAX
) -> Generator[Message | None]:
    """What the command says, line by line; None each LOOKED_EVERY_S in which it says nothing.

    Closing the iterator ends the command. Raises NoAnswer.
    """
    command = [sys.executable, "-m", "simulator", "what-if", "--trace", str(trace), "--question", "-"]
    with TemporaryFile() as errors, TemporaryFile() as asked:
        asked.write(msgspec.json.encode(question))
        asked.seek(0)
        process = subprocess.Popen(  # noqa: S603  fixed command, figures on its standard input
            command, stdin=asked, stdout=subprocess.PIPE, stderr=errors, cwd=settings.BASE_DIR, env=_environment(),
            start_new_session=True, preexec_fn=_bound,
        )  # fmt: skip
        try:
            yield from _lines(process, until=time.monotonic() + seconds_max)
            if process.wait(ENDED_WITHIN_S):
                raise NoAnswer(_words(errors))
        except subprocess.TimeoutExpired:
            raise NoAnswer("The simulator did not end.") from None
        finally:
            _end(process)


def _environment() -> dict[str, str]:
    """No setting of the installation: it holds addresses and secrets that a simulation has no use for."""
    kept = ("PATH", "HOME", "LANG", "LC_ALL", "PYTHONPATH", "VIRTUAL_ENV", "PYTHONHASHSEED")
    return {name: os.environ[name] for name in kept if name in os.environ}


def _bound() -> None:
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS_MAX, SECONDS_MAX))


def _lines(process: subprocess.Popen[bytes], *, until: float) -> Iterator[Message | None]:
    assert process.stdout is not None
    held = b""
    with selectors.DefaultSelector() as waiting:
        waiting.register(process.stdout, selectors.EVENT_READ)
        while True:
            if time.monotonic() >= until:
                raise NoAnswer("The simulation took too long. Ask for fewer scenarios, or a shorter range.")
            if not waiting.select(LOOKED_EVERY_S):
                yield None
                continue
            read = os.read(process.stdout.fileno(), 65_536)
            if not read:
                return
            *whole, held = (held + read).split(b"\n")
            if len(held) > LINE_BYTES_MAX:
                raise NoAnswer("The simulator's answer is too long.")
            for line in whole:
                yield from _decoded(line)


def _decoded(line: bytes) -> Iterator[Message]:
    if line.strip():
        try:
            yield msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.DecodeError:
            raise NoAnswer("The simulator's answer could not be read.") from None


def _words(errors: IO[bytes]) -> str:
    """The command's own sentence. Anything else that it wrote stays here: it may tell of paths."""
    errors.seek(0)
    last = errors.read(64 * 1024).decode(errors="replace").strip().rpartition("\n")[2]
    _, found, words = last.partition(PREFIX)
    return words[:WORDS_MAX] if found else "The simulator ended early: it needed more memory or time than it may have."


def _end(process: subprocess.Popen[bytes]) -> None:
    """With all that it started."""
    if process.stdout is not None:
        process.stdout.close()
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(ENDED_WITHIN_S)

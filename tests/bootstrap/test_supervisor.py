"""The supervisor names a role that dies, starts it again with growing pauses, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from controlplane.supervisor import supervisor as module
from controlplane.supervisor.processes import LINE_BYTES_MAX, Role, relay_lines
from controlplane.supervisor.supervisor import Supervisor, ending_in_words
from controlplane.supervisor.terminal import Terminal, readable

FIRST_S, MAX_S = 0.05, 0.2


class Screen(Terminal):
    """Keeps lines instead of showing them."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def line(self, role: str, text: str) -> None:
        self.lines.append((role, text))

    def said(self) -> list[str]:
        return [text for role, text in self.lines if role == "up"]


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    monkeypatch.setattr(module, "BACK_OFF_FIRST_S", FIRST_S)
    monkeypatch.setattr(module, "BACK_OFF_MAX_S", MAX_S)
    monkeypatch.setattr(module, "STOP_WITHIN_S", 1.0)
    return Screen()


@pytest.fixture
async def supervisor(screen: Screen) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(screen)
    yield supervisor
    await supervisor.stop_all()


def shell(name: str, script: str, **options: bool) -> Role:
    return Role(name, ["/bin/sh", "-c", script], **options)


async def until(condition: Callable[[], object], within_s: float = 5.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def test_a_role_that_dies_is_named_and_started_again_with_growing_pauses(
    supervisor: Supervisor, screen: Screen
) -> None:
    supervisor.start(shell("fragile", "echo here; exit 3"))
    await until(lambda: supervisor.restarts().get("fragile", 0) >= 3)
    assert ("fragile", "here") in screen.lines
    assert [text for text in screen.said() if "fragile ended with status 3; starting it again in" in text]
    assert supervisor.restarts() == {"fragile": 3}


async def test_a_minute_of_life_earns_a_fresh_count(
    supervisor: Supervisor, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STEADY_AFTER_S", 0.0)
    monkeypatch.setattr(module, "BACK_OFF_MAX_S", 60.0)
    supervisor.start(shell("fragile", "exit 1"))
    await until(lambda: supervisor.restarts().get("fragile", 0) >= 8)  # 0.05 × 2⁸ would be 13 s


async def test_a_program_that_does_not_exist_is_a_message_and_a_pause(supervisor: Supervisor, screen: Screen) -> None:
    supervisor.start(Role("absent", ["/nonexistent/program"]))
    await until(lambda: len(screen.said()) >= 2)
    assert screen.said()[0].startswith("absent cannot be started:")


async def test_a_role_that_runs_once_is_not_started_again(supervisor: Supervisor, screen: Screen) -> None:
    supervisor.start(shell("player", "exit 0", runs_once=True))
    assert await supervisor.wait_for_end_of("player") == 0
    assert supervisor.restarts() == {} and screen.said() == []


async def test_stopping_kills_a_role_that_does_not_listen_with_all_its_children(
    supervisor: Supervisor, screen: Screen, tmp_path: Path
) -> None:
    child = tmp_path / "child"
    supervisor.start(shell("deaf", f"trap '' TERM; sleep 60 & echo $! > {child}; while :; do sleep 1; done"))
    await until(lambda: child.exists() and child.read_text().strip())
    await supervisor.stop_all()
    assert "deaf did not end within 1 s; killed" in screen.said()
    with contextlib.suppress(ProcessLookupError):
        await until(lambda: not _runs(int(child.read_text())))


async def test_what_a_dead_role_leaves_behind_is_ended_before_the_next_begins(
    supervisor: Supervisor, screen: Screen, tmp_path: Path
) -> None:
    child = tmp_path / "child"
    supervisor.start(shell("parent", f"[ -e {child} ] && sleep 60; sleep 60 & echo $! > {child}; exit 1"))
    await until(lambda: supervisor.restarts().get("parent", 0) >= 1)
    await until(lambda: not _runs(int(child.read_text())))


async def test_killing_everything_waits_for_nobody(supervisor: Supervisor, screen: Screen) -> None:
    supervisor.start(shell("deaf", "trap '' TERM; while :; do sleep 1; done"))
    await until(lambda: supervisor.pids())
    supervisor.kill_all()
    await until(lambda: not supervisor.pids(), within_s=1)
    assert supervisor.restarts() == {}


async def test_an_endless_line_is_shown_in_bounded_pieces() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(b"x" * (3 * LINE_BYTES_MAX) + b"\nend\n\xff")
    reader.feed_eof()
    lines: list[str] = []
    await relay_lines(reader, lines.append)
    assert "".join(lines[:-2]) == "x" * (3 * LINE_BYTES_MAX)
    assert all(len(line) <= 2 * LINE_BYTES_MAX for line in lines)
    assert lines[-2:] == ["end", "\N{REPLACEMENT CHARACTER}"]


@pytest.mark.parametrize(
    ("status", "words"), [(None, "could not be started"), (-9, "was killed by SIGKILL"), (1, "ended with status 1")]
)
def test_an_ending_is_put_in_words(status: int | None, words: str) -> None:
    assert ending_in_words(status) == words


def test_a_json_log_event_is_shown_as_words() -> None:
    line = '{"event":"router_serves","level":"info","timestamp":"2026","port":8080}'
    assert readable(line) == "INFO router_serves port=8080"
    assert readable("{not json") == "{not json"
    assert readable("[1]") == "[1]"


def test_the_password_is_on_the_terminal_and_not_in_the_log_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = Terminal(tmp_path / "logs" / "up.log")
    terminal.secret("account made: admin · password geheim")
    terminal.say("serving")
    assert "geheim" in capsys.readouterr().out
    log = (tmp_path / "logs" / "up.log").read_text()
    assert "geheim" not in log and "serving" in log
    assert oct((tmp_path / "logs" / "up.log").stat().st_mode & 0o777) == "0o600"


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False

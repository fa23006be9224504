"""From a question to its answer by the simulator's own command: once, with progress, ended when it is cancelled."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from controlplane.tenants.roles import FULL_ACCESS
from controlplane.what_if import running, services
from controlplane.what_if.models import WhatIf
from controlplane.what_if.simulating import messages
from controlplane.what_if.tasks import tick
from tests.what_if.conftest import ask

State = WhatIf.State


def test_a_question_is_answered_by_the_simulators_command(recorded: datetime, monkeypatch: Any) -> None:
    monkeypatch.setattr(running, "SAVED_EVERY_S", 0.0)
    row = ask(recorded, scenarios=[{"more_workers": 2}, {"policy": "round_robin"}])
    seen: list[tuple[int, int]] = []
    save = running._save

    def noting(row: WhatIf, **values: Any) -> None:
        save(row, **values)
        seen.append(WhatIf.objects.values_list("simulated", "to_simulate").get(pk=row.pk))

    monkeypatch.setattr(running, "_save", noting)
    assert running.run(row.pk) == State.DONE
    row.refresh_from_db()
    assert row.answer is not None and row.requests == 96 and row.lease_until is None
    names = [scenario["name"] for scenario in row.answer["scenarios"]]
    assert names == ["as it is", "2 more workers", "round robin"]
    as_it_is, _, round_robin = (scenario["hit_token_share"]["mean"] for scenario in row.answer["scenarios"])
    assert as_it_is > round_robin + 0.05, "sessions that share a head hit less on workers by turns"
    assert row.answer["measured"]["hit_token_share"] == pytest.approx(0.6, abs=0.01)
    assert seen == sorted(seen) and 0 < seen[-1][0] <= seen[-1][1] == row.to_simulate == row.simulated


def test_a_late_or_repeated_task_changes_nothing(recorded: datetime) -> None:
    row = ask(recorded)
    services.cancel(row.pk, actor="user:olga", access=FULL_ACCESS)
    assert running.run(row.pk) == "" and running.run(10**6) == ""
    row.refresh_from_db()
    assert (row.state, row.answer) == (State.CANCELLED, None)


def test_cancelling_ends_the_simulators_process(recorded: datetime, monkeypatch: Any) -> None:
    monkeypatch.setattr(running, "SAVED_EVERY_S", 0.0)
    row = ask(recorded, scenarios=[{"load_factor": 1 + step / 10} for step in range(1, 9)], seeds=5)
    begun: list[int] = []

    def noting(*arguments: Any) -> Iterator[Any]:
        with contextlib.closing(messages(*arguments)) as said:
            for message in said:
                if not begun:
                    begun.extend(_simulators())
                    services.cancel(row.pk, actor="user:olga", access=FULL_ACCESS)
                yield message

    monkeypatch.setattr(running, "messages", noting)
    assert running.run(row.pk) == State.CANCELLED
    assert begun and not _simulators()


def test_a_process_that_dies_is_told_in_words(recorded: datetime, monkeypatch: Any) -> None:
    row = ask(recorded)

    def killed(*arguments: Any) -> Iterator[Any]:
        for message in messages(*arguments):
            for simulator in _simulators():
                os.kill(simulator, signal.SIGKILL)
            yield message

    monkeypatch.setattr(running, "messages", killed)
    assert running.run(row.pk) == State.FAILED
    row.refresh_from_db()
    assert "ended early" in row.error


def test_what_the_simulator_refuses_is_passed_on_in_its_words(recorded: datetime) -> None:
    row = ask(recorded)
    WhatIf.objects.filter(pk=row.pk).update(question=row.question | {"profile": "abacus"})
    assert running.run(row.pk) == State.FAILED
    row.refresh_from_db()
    assert "profile is one of" in row.error and "/" not in row.error


def test_a_simulation_that_takes_too_long_is_ended(recorded: datetime, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(running, "messages", lambda trace, question: messages(trace, question, seconds_max=0.0))
    row = ask(recorded)
    assert running.run(row.pk) == State.FAILED
    row.refresh_from_db()
    assert "too long" in row.error
    assert not _simulators()


def test_what_a_dead_worker_left_fails_and_the_next_begins(recorded: datetime, monkeypatch: Any) -> None:
    begun: list[int] = []
    monkeypatch.setattr("controlplane.what_if.tasks.run_what_if.apply_async", lambda args, **_: begun.extend(args))
    dead, waiting = ask(recorded), ask(recorded)
    past = timezone.now() - timedelta(seconds=1)
    WhatIf.objects.filter(pk=dead.pk).update(state=State.RUNNING, lease_until=past + timedelta(minutes=1))
    assert tick() is False, "one at a time"
    WhatIf.objects.filter(pk=dead.pk).update(lease_until=past)
    assert tick() is True and begun == [waiting.pk]
    dead.refresh_from_db()
    assert dead.state == State.FAILED and "Ask again" in dead.error


def test_questions_are_kept_for_a_time_and_no_more_than_so_many(recorded: datetime, monkeypatch: Any) -> None:
    old, waiting, *others = (ask(recorded, actor=f"user:{number}") for number in range(5))
    ended = [row.pk for row in (old, *others)]
    WhatIf.objects.filter(pk__in=ended).update(state=State.FAILED)
    WhatIf.objects.filter(pk=old.pk).update(created_at=timezone.now() - running.KEPT_FOR - timedelta(days=1))
    assert running.forget_old() == 1
    monkeypatch.setattr(running, "KEPT_MAX", 2)
    assert running.forget_old() == 1
    assert set(WhatIf.objects.values_list("pk", flat=True)) == {waiting.pk, others[1].pk, others[2].pk}


def _simulators() -> list[int]:
    """Processes of this one's that simulate and have not ended."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if int(parent) == os.getpid() and state != "Z" and b"what-if" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found

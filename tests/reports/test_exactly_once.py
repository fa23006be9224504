"""Each due time becomes one run: with several beats at once, after an outage, and when a process dies (A20)."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from controlplane.fleet.models import Finding
from controlplane.reports import producing, scheduling, services
from controlplane.reports.models import ReportRun, ReportSchedule
from tests.reports.conftest import ACTOR, schedule

ROOT = Path(__file__).resolve().parents[2]
BEATS = 6
SCRIPT = f"""
import os
import django
django.setup()
from datetime import timedelta
from django.core.management import call_command
from django.db import connections
from django.utils import timezone
from controlplane.reports import scheduling, services
from controlplane.reports.models import ReportRun, ReportSchedule

call_command("migrate", verbosity=0)
for number in range(5):
    services.create_schedule(actor="user:x", slug=f"s{{number}}", cron="0 * * * *")
due = timezone.now().replace(minute=0, second=0, microsecond=0)
ReportSchedule.objects.update(next_due_at=due)
connections.close_all()
children = []
for _ in range({BEATS}):
    readable, writable = os.pipe()
    if os.fork() == 0:
        try:
            made = [run for _ in range(3) for run in scheduling.begin_due()]
            os.write(writable, repr(made).encode())
        finally:
            os._exit(0)
    os.close(writable)
    children.append(readable)
made = [eval(os.read(readable, 65536).decode() or "None") for readable in children]
assert all(part is not None for part in made), made
found = sorted(run for part in made for run in part)
assert found == sorted(ReportRun.objects.values_list("pk", flat=True)) and len(found) == 5, made
assert ReportSchedule.objects.filter(next_due_at__lte=timezone.now()).count() == 0
"""


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def test_several_beats_begin_each_due_report_once(request, run_dir: Path, kind: str) -> None:
    environment = {
        **os.environ,
        "TIDEMARK_RUN_DIR": str(run_dir),
        "TIDEMARK_DATABASE_URL": "" if kind == "sqlite" else request.getfixturevalue("postgres_url"),
        "TIDEMARK_REDIS_URL": f"unix://{run_dir}/none.sock",
        "TIDEMARK_LOG_LEVEL": "ERROR",
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
    }
    run = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(run, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=90)
    assert done.returncode == 0, done.stderr


@pytest.mark.django_db
def test_a_due_time_passes_once_and_the_next_one_waits() -> None:
    row = schedule(cron="0 8 * * *", time_zone="Europe/Berlin")
    due = row.next_due_at
    assert scheduling.begin_due(due - timedelta(seconds=1)) == []
    [run] = scheduling.begin_due(due)
    assert scheduling.begin_due(due + timedelta(minutes=5)) == []
    run = ReportRun.objects.get(pk=run)
    assert (run.due_at, run.to_at, run.missed) == (due, due, [])
    row.refresh_from_db()
    assert timedelta(hours=23) <= row.next_due_at - due <= timedelta(hours=25)


@pytest.mark.django_db
def test_what_was_missed_is_made_up_for_once_and_noted() -> None:
    row = schedule(cron="0 8 * * *")
    first = row.next_due_at
    [pk] = scheduling.begin_due(first + timedelta(days=3, hours=1))
    run = ReportRun.objects.get(pk=pk)
    assert run.due_at == first + timedelta(days=3)
    assert [datetime.fromisoformat(at) for at in run.missed] == [first + timedelta(days=n) for n in range(3)]
    assert scheduling.begin_due(first + timedelta(days=3, hours=2)) == []


@pytest.mark.django_db
def test_a_schedule_that_is_off_is_never_due() -> None:
    row = schedule(enabled=False)
    assert row.next_due_at is None and scheduling.begin_due(timezone.now() + timedelta(days=400)) == []
    row = services.update_schedule(row.pk, actor=ACTOR, enabled=True)
    assert row.next_due_at > timezone.now()


@pytest.mark.django_db
def test_one_report_is_made_at_a_time_and_one_process_makes_it(monkeypatch) -> None:
    row = schedule(formats=["json"])
    first, second = (services.run_now(row.pk, actor=ACTOR) for _ in range(2))
    assert scheduling.next_to_make() == first.pk
    ReportRun.objects.filter(pk=first.pk).update(state="running", next_attempt_at=timezone.now() + timedelta(minutes=5))
    assert scheduling.next_to_make() is None and producing.make(first.pk) == ""
    ReportRun.objects.filter(pk=first.pk).update(next_attempt_at=timezone.now() - timedelta(seconds=1))
    assert scheduling.next_to_make() == first.pk, "its process is dead: it is begun again"
    assert producing.make(second.pk) == "done" and producing.make(second.pk) == ""


@pytest.mark.django_db
def test_a_run_that_never_ends_is_given_up_after_three_and_made_afresh_by_hand(monkeypatch) -> None:
    run = services.run_now(schedule(formats=["json"]).pk, actor=ACTOR)
    monkeypatch.setattr(producing, "review", _broken)
    for attempt in range(3):
        ReportRun.objects.filter(pk=run.pk).update(next_attempt_at=timezone.now())
        with pytest.raises(RuntimeError):
            producing.make(run.pk)
        run.refresh_from_db()
        assert run.attempts == attempt + 1
    assert run.state == "failed" and run.error.startswith("RuntimeError") and "secret" not in run.error
    assert Finding.objects.filter(kind="task_given_up", resolved_at=None).count() == 1
    assert scheduling.next_to_make(timezone.now() + timedelta(days=1)) is None
    monkeypatch.undo()
    producing.retry(run.pk, actor=ACTOR)
    assert producing.make(run.pk) == "done"
    assert not Finding.objects.filter(kind="task_given_up", resolved_at=None).exists()


@pytest.mark.django_db
def test_between_two_attempts_it_waits(monkeypatch) -> None:
    run = services.run_now(schedule(formats=["json"]).pk, actor=ACTOR)
    monkeypatch.setattr(producing, "review", _broken)
    with pytest.raises(RuntimeError):
        producing.make(run.pk)
    run.refresh_from_db()
    wait = run.next_attempt_at - timezone.now()
    assert run.state == "queued" and timedelta(seconds=20) < wait <= timedelta(seconds=30)


@pytest.mark.django_db
def test_old_reports_are_forgotten_with_their_files() -> None:
    run = services.run_now(schedule(formats=["json"]).pk, actor=ACTOR)
    producing.make(run.pk)
    assert scheduling.forget_old() == 0
    ReportRun.objects.update(created_at=datetime(2020, 1, 1, tzinfo=UTC))
    assert scheduling.forget_old() > 0 and not ReportRun.objects.exists() and ReportSchedule.objects.exists()


@pytest.mark.django_db
def test_of_one_schedule_the_newest_are_kept(monkeypatch) -> None:
    monkeypatch.setattr(scheduling, "RUNS_KEPT", 2)
    row, other = schedule(formats=["json"]), schedule("other", formats=["json"])
    runs = [services.run_now(row.pk, actor=ACTOR).pk for _ in range(5)]
    kept = services.run_now(other.pk, actor=ACTOR).pk
    scheduling.forget_old()
    assert set(ReportRun.objects.values_list("pk", flat=True)) == {*runs[3:], kept}


def _broken(*args: object, **kwargs: object) -> None:
    raise RuntimeError("a secret in an exception's words")

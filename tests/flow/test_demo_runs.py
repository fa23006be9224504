"""The whole loop under one running demo: it fills its figures, survives the death of each role, and ends cleanly.

The tests share the demo and run in their order in this file.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.installation import Installation, wait_until

pytestmark = [pytest.mark.flow, pytest.mark.timeout(120)]

FIGURES_WITHIN_S = 60
BACK_WITHIN_S = 20
BEYOND_THE_ROUTER = ("web", "celery", "beat", "kv-events", "valkey")
"""Roles that no request waits for (A1): their death must not fail one."""
INNOCENT_OUTCOMES = ("ok", "client_disconnect")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    installation = Installation(tmp_path_factory.mktemp("demo"))
    installation.start("--demo")
    try:
        installation.wait_until_serving()
        yield installation
    finally:
        installation.end()


def test_it_fills_every_kind_of_figure_within_a_minute(demo: Installation) -> None:
    figures = {
        "hit tokens": "SELECT sum(hit_tokens) FROM telemetry_requestrollup WHERE width_s = 10",
        "predicted hit tokens": "SELECT sum(predicted_hit_tokens) FROM telemetry_requestrollup WHERE width_s = 10",
        "polls": "SELECT sum(polls_ok) FROM telemetry_workerrollup WHERE width_s = 10",
        "KV use samples": "SELECT sum(kv_use_samples) FROM telemetry_workerrollup WHERE width_s = 10",
        "stored blocks": "SELECT sum(stored_blocks) FROM telemetry_workerrollup WHERE width_s = 10",
        "isolation checks": "SELECT sum(isolation_checked) FROM telemetry_requestrollup WHERE width_s = 10",
    }
    for name, sql in figures.items():
        wait_until(lambda sql=sql: demo.number(sql) > 0, FIGURES_WITHIN_S, name, demo.log)


def test_the_router_serves_the_published_snapshot(demo: Installation) -> None:
    wait_until(
        lambda: demo.rows(
            "SELECT 1 FROM snapshots_routerstatus WHERE snapshot_version = "
            "(SELECT max(version) FROM snapshots_publishedsnapshot)"
        ),
        BACK_WITHIN_S,
        "router on the newest version",
        demo.log,
    )


@pytest.mark.parametrize("role", BEYOND_THE_ROUTER)
def test_requests_go_on_without_an_error_while_a_role_is_killed_and_comes_back(demo: Installation, role: str) -> None:
    wait_until(demo.answered, BACK_WITHIN_S, "router metrics")
    before = demo.answered()
    _kill_and_wait(demo, role)
    wait_until(
        lambda: demo.answered().get("ok", 0) > before.get("ok", 0) + 10, BACK_WITHIN_S, "ten more answers", demo.log
    )
    failed = {
        outcome: count - before.get(outcome, 0)
        for outcome, count in demo.answered().items()
        if outcome not in INNOCENT_OUTCOMES and count > before.get(outcome, 0)
    }
    assert failed == {}


@pytest.mark.parametrize("role", ["w2", "router", "traffic"])
def test_a_killed_part_of_the_data_path_comes_back_and_requests_flow_again(demo: Installation, role: str) -> None:
    _kill_and_wait(demo, role)
    wait_until(lambda: demo.answered().get("ok", 0) > 0, BACK_WITHIN_S, "answers", demo.log)
    before = demo.answered()["ok"]
    wait_until(lambda: demo.answered().get("ok", 0) > before, BACK_WITHIN_S, "more answers", demo.log)


def test_figures_resume_after_the_deaths(demo: Installation) -> None:
    newest = "SELECT strftime('%s', max(start)) FROM {} WHERE width_s = 10"
    for table in ("telemetry_requestrollup", "telemetry_workerrollup"):
        sql = newest.format(table)
        wait_until(lambda sql=sql: demo.number(sql) > time.time() - 25, 40, f"fresh rows of {table}", demo.log)


def test_no_figure_is_negative_and_no_gap_is_filled_with_zero(demo: Installation) -> None:
    columns = ("requests", "prompt_tokens", "hit_tokens", "predicted_hit_tokens", "saved_prefill_ms", "slo_met")
    negative = " OR ".join(f"{column} < 0" for column in columns)
    assert demo.rows(f"SELECT * FROM telemetry_requestrollup WHERE {negative}") == []
    counters = ("prompt_tokens", "prefix_hit_tokens", "generation_tokens", "stored_blocks", "removed_blocks")
    negative = " OR ".join(f"{column} < 0" for column in counters)
    assert demo.rows(f"SELECT * FROM telemetry_workerrollup WHERE {negative}") == []
    # The one kind of row without requests says that a router was there and idle; where nothing reports, no row is.
    assert demo.rows("SELECT * FROM telemetry_requestrollup WHERE requests = 0 AND errors = '{}' AND pool != ''") == []


def test_one_ctrl_c_ends_every_process(demo: Installation) -> None:
    demo.signal(signal.SIGINT)
    assert demo.wait_for_end() == 0
    wait_until(lambda: demo.pids() == [], 3, "no process left", lambda: str(demo.pids()))


def test_a_second_start_keeps_its_data_and_serves_soon(demo: Installation) -> None:
    users = demo.rows("SELECT username, password FROM tenants_user")
    keys = (demo.run_dir / "demo-keys.json").read_text()
    started = time.monotonic()
    demo.log_file.write_text("")
    demo.start("--demo")
    demo.wait_until_serving()
    assert time.monotonic() - started < 30, "an idle machine takes 5 s; this bound only catches a repeated set-up"
    assert demo.rows("SELECT username, password FROM tenants_user") == users
    assert (demo.run_dir / "demo-keys.json").read_text() == keys
    assert "account made" not in demo.log()


def test_nothing_outlives_a_killed_supervisor(demo: Installation) -> None:
    assert len(demo.pids()) > 5
    demo.signal(signal.SIGKILL)
    demo.wait_for_end()
    wait_until(lambda: demo.pids() == [], 10, "no process left", lambda: str(demo.pids()))


def _kill_and_wait(demo: Installation, role: str) -> None:
    wait_until(lambda: demo.pid_of(role), BACK_WITHIN_S, f"{role} runs", demo.log)
    pid = demo.pid_of(role)
    assert pid is not None
    told = demo.log().count(f"{role} was killed by SIGKILL")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: demo.log().count(f"{role} was killed by SIGKILL") > told, 5, f"{role} is named", demo.log)
    wait_until(lambda: demo.pid_of(role) not in (None, pid), BACK_WITHIN_S, f"{role} is started again", demo.log)

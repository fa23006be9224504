"""`manage.py up --for`: a run that reports and ends by itself; and what it says when a port is taken."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.installation import Installation

pytestmark = [pytest.mark.flow, pytest.mark.timeout(150)]

KEYS = {
    "requests", "errors", "prompt_tokens", "hit_tokens", "predicted_hit_tokens", "hit_token_share", "ttft_hit_ms",
    "ttft_miss_ms", "router_decision_us", "spills", "evictions", "violations", "polls_ok", "polls_failed",
    "ingest_lag_ms", "websocket_updates", "snapshot_version", "routers_on_version", "seconds_to_serving", "client",
}  # fmt: skip


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    installation = Installation(tmp_path)
    yield installation
    installation.end()


def test_a_headless_run_reports_what_was_stored_and_ends_well(installation: Installation, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    installation.start("--demo", "--for", "25", "--traffic", "weka", "--report", str(path))
    status = installation.wait_for_end(within_s=120)
    report = installation.report(path)
    assert report["problems"] == [], installation.log()[-3000:]
    assert status == 0
    assert report.keys() >= KEYS
    client = report["client"]
    assert isinstance(client, dict)
    # Beyond complete answers the router may have counted those that were under way when the player ended, no others.
    assert 0 <= report["requests"] - client["requests"] <= client["cut_off"]
    assert report["errors_by_kind"].get("client_disconnect", 0) <= client["cut_off"]
    assert report["hit_tokens"] == pytest.approx(client["cached_tokens"], rel=0.02)
    assert 0 < report["hit_token_share"] < 1
    assert report["ttft_hit_ms"]["p50"] < report["ttft_miss_ms"]["p50"]
    assert report["violations"] == 0 and report["polls_failed"] == 0
    assert installation.pids() == []


def test_a_port_in_use_is_named_with_the_variable_that_moves_it(installation: Installation) -> None:
    with socket.create_server(("127.0.0.1", installation.ports["TIDEMARK_ROUTER_PORT"])):
        installation.start()
        assert installation.wait_for_end() == 2
    port = installation.ports["TIDEMARK_ROUTER_PORT"]
    assert f"127.0.0.1:{port} (router) is in use; set TIDEMARK_ROUTER_PORT to another port" in installation.log()
    assert installation.pids() == []


def test_a_contradictory_command_line_is_refused_before_anything_starts(installation: Installation) -> None:
    installation.start("--report", "report.json")
    assert installation.wait_for_end() == 1
    assert "--report needs --for SECONDS" in installation.log()

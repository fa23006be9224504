"""The fleet command: flags, table, files and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulator.__main__ import main

SMALL = ["fleet", "--trace", "conversation", "--workers", "2", "--load", "0.5", "--seeds", "1", "--requests", "60"]


def test_it_prints_a_table_and_writes_json_and_markdown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, page = tmp_path / "out.json", tmp_path / "out.md"
    flags = [*SMALL, "--policies", "round_robin,oracle", "--json", str(out), "--markdown", str(page)]
    assert main(flags) == 0
    assert "round_robin" in capsys.readouterr().out
    written = json.loads(out.read_text())
    assert {row["policy"] for row in written["rows"]} == {"round_robin", "oracle"}
    assert all(run["requests"] == run["finished"] + run["unfinished"] for run in written["runs"])
    assert page.read_text().startswith("**Goodput relative to the oracle's**")


def test_it_runs_under_stated_conditions(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    flags = ["--policies", "tidemark_exact", "--event-delay", "0.2", "--event-loss", "0.1", "--leave", "2:1:3"]
    flags += ["--tenants", "2", "--tier-gib", "8"]
    assert main([*SMALL, *flags, "--json", str(out)]) == 0
    [run] = json.loads(out.read_text())["runs"]
    assert run["conditions"]["event_loss"] == 0.1 and run["conditions"]["departures"][0]["worker"] == 1
    assert run["finished"] == run["requests"] == 60


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--policies", "tidemark,best", "'best' is none of"),
        ("--trace", "azure", "'azure' is none of"),
        ("--workers", "0", "not between 1 and 1024"),
        ("--load", "much", "not a list of numbers"),
        ("--requests", "4001", "between 1 and 4000"),
        ("--processes", "0", "must be positive"),
        ("--leave", "3:1", "is not AT:WORKER:AWAY"),
        ("--event-loss", "1", "between 0 and below 1"),
        ("--tenants", "0", "at least one tenant"),
    ],
)
def test_it_refuses_what_it_cannot_run(flag: str, value: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*SMALL, flag, value])
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err

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


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--policies", "tidemark,best", "'best' is none of"),
        ("--trace", "azure", "'azure' is none of"),
        ("--workers", "0", "not between 1 and 1024"),
        ("--load", "much", "not a list of numbers"),
        ("--requests", "4001", "between 1 and 4000"),
        ("--processes", "0", "must be positive"),
    ],
)
def test_it_refuses_what_it_cannot_run(flag: str, value: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*SMALL, flag, value])
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err

"""`python -m benchmarks`: narrowed, a broken group told, the report written, the verdict as exit status."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks.proxybench.kit import BenchError
from benchmarks.report import Bar, Report


def good(report: Report) -> None:
    report.add("cost", "µs", 10.0 * report.rounds, bars=[Bar(20)])


def broken(report: Report) -> None:
    raise BenchError("a C compiler is needed")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    out = tmp_path / "out" / "latest.json"

    def run(*arguments: str) -> tuple[int, dict]:
        monkeypatch.setattr(command, "GROUPS", {"good": good, "broken": broken})
        monkeypatch.setattr(sys, "argv", ["benchmarks", "--out", str(out), *arguments])
        return command.main(), json.loads(out.read_text())

    return run


def test_it_writes_where_with_what_and_how_each_measure_did(run) -> None:
    status, report = run("--only", "good", "--rounds", "2")
    assert status == 0
    assert report["rounds"] == 2 and report["machine"]["cores"] >= 1 and report["python"]
    assert [(each["name"], each["ours"], each["ok"]) for each in report["measures"]] == [("cost", 20.0, True)]


def test_the_table_lies_beside_it_as_markdown(run, tmp_path: Path) -> None:
    run("--only", "good", "--rounds", "2")
    page = (tmp_path / "out" / "latest.md").read_text()
    assert "| cost | 20 µs | ≤ 20 | yes |" in page


def test_it_fails_when_a_bar_is_missed(run) -> None:
    status, report = run("--only", "good", "--rounds", "3")
    assert (status, report["measures"][0]["ok"]) == (1, False)


def test_a_group_that_breaks_ends_neither_the_run_nor_unseen(run, capsys) -> None:
    status, report = run("--rounds", "1", "--only", "broken,good")
    assert status == 0
    assert [each["ok"] for each in report["measures"]] == [None, True]
    assert "a C compiler is needed" in capsys.readouterr().out


def test_an_unknown_group_is_refused(run, capsys) -> None:
    with pytest.raises(SystemExit):
        run("--only", "speed")
    assert "there are good, broken" in capsys.readouterr().err

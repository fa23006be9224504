"""What a measure is worth: verdicts, ratios, what is missing, the comparison with the last report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.report import BEST_PEER, Bar, Report, read_previous, table

PEERS = {"fast": 50.0, "slow": 200.0}


def only(report: Report) -> dict:
    (measure,) = report.as_json({})["measures"]
    return measure


@pytest.mark.parametrize(
    ("bar", "ours", "ok"),
    [
        (Bar(100), 100.0, True),
        (Bar(100), 100.1, False),
        (Bar(100, at_least=True), 99.9, False),
        (Bar(100, at_least=True), 100.0, True),
        (Bar(0.5, "slow"), 100.0, True),
        (Bar(0.5, "slow"), 101.0, False),
        (Bar(1.0, BEST_PEER), 50.0, True),
        (Bar(1.0, BEST_PEER), 51.0, False),
    ],
)
def test_a_bar_is_met_or_missed(bar: Bar, ours: float, ok: bool) -> None:
    report = Report(rounds=1)
    report.add("cost", "µs", ours, peers=PEERS, bars=[bar])
    assert only(report)["ok"] is ok


def test_one_missed_bar_of_two_is_a_miss() -> None:
    report = Report(rounds=1)
    report.add("cost", "µs", 100.0, peers=PEERS, bars=[Bar(0.5, "slow"), Bar(1.0, "fast")])
    assert only(report)["ok"] is False


@pytest.mark.parametrize("against", ["absent", BEST_PEER])
def test_a_peer_that_could_not_be_had_leaves_the_measure_open_and_says_why(against: str) -> None:
    report = Report(rounds=1)
    report.skipped["absent round_robin"] = "could not be installed: no wheel"
    report.add("cost", "µs", 100.0, peers={"absent": None}, bars=[Bar(1.0, against), Bar(200)])
    measure = only(report)
    assert measure["ok"] is None
    assert ("no wheel" in measure["why"]) is (against == "absent")
    assert measure["peers"] == {}
    assert "not measured, absent round_robin: could not be installed: no wheel" in table(report, {})


def test_a_missed_bar_is_a_miss_though_another_one_is_open() -> None:
    report = Report(rounds=1)
    report.add("cost", "µs", 300.0, bars=[Bar(1.0, "absent"), Bar(200)])
    assert only(report)["ok"] is False


def test_errors_of_ours_are_a_miss_whatever_the_figure() -> None:
    report = Report(rounds=1)
    report.add("cost", "µs", 1.0, bars=[Bar(100)], why="7 of 10 requests failed", failed=True)
    assert only(report)["ok"] is False


def test_a_group_that_broke_is_open_not_absent() -> None:
    report = Report(rounds=1)
    report.failed_group("unseen", "BenchError: no compiler")
    assert (only(report)["name"], only(report)["ok"], only(report)["why"]) == (
        "unseen",
        None,
        "BenchError: no compiler",
    )
    assert table(report, {}).endswith("0 met, 0 missed, 1 open")


def test_a_figure_without_a_bar_is_neither() -> None:
    report = Report(rounds=1)
    report.add("throughput", "/s", 100.0, peers=PEERS)
    assert only(report)["ok"] is None
    assert only(report)["ratio"] == {"fast": 2.0, "slow": 0.5}
    assert table(report, {}).endswith("0 met, 0 missed, 0 open")


def test_it_is_compared_with_the_last_report(tmp_path: Path) -> None:
    file = tmp_path / "latest.json"
    assert read_previous(file) == {}
    file.write_text("{not json")
    assert read_previous(file) == {}
    earlier = Report(rounds=1)
    earlier.add("cost", "µs", 123.0)
    earlier.add("not had", "µs", None)
    file.write_text(json.dumps(earlier.as_json({"commit": "abc"})))
    assert read_previous(file) == {"cost": 123.0}
    later = Report(rounds=1)
    later.add("cost", "µs", 100.0, bars=[Bar(110)])
    line = next(line for line in table(later, read_previous(file)).splitlines() if line.startswith("cost"))
    assert line.split() == ["cost", "100", "µs", "123", "≤", "110", "ok"]

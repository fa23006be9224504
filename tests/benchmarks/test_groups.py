"""The groups of `make bench`: each has a name that works, and what its benchmark prints becomes measures with bars."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json

import pytest

from benchmarks import alone, fleet_scale, ingestion
from benchmarks.__main__ import GROUPS, LONG, chosen
from benchmarks.poll_scale import Result
from benchmarks.proxybench.kit import BenchError
from benchmarks.report import Report, table
from benchmarks.revocation.__main__ import PHASES

QUICK = {"proxy", "decision", "exact_decision", "events", "memory", "recording", "unseen", "quality", "snapshot"}


def options(**given: object) -> argparse.Namespace:
    return argparse.Namespace(**{"only": None, "all": False} | given)


def verdicts(report: Report) -> dict[str, bool | None]:
    return {measure["name"]: measure["ok"] for measure in report.as_json({})["measures"]}


def test_long_groups_run_where_they_are_asked_for() -> None:
    assert set(GROUPS) > LONG
    assert set(chosen(options())) >= QUICK and not LONG & set(chosen(options()))
    assert chosen(options(all=True)) == list(GROUPS)
    assert chosen(options(only=["revocation"])) == ["revocation"]


@pytest.mark.parametrize("module", ["control_scale", "revocation", "poll_scale", "ingestion", "fleet_scale"])
def test_what_a_group_runs_is_there(module: str) -> None:
    assert importlib.util.find_spec(f"benchmarks.{module}")


def test_a_benchmark_that_is_not_installed_leaves_its_group_open() -> None:
    with pytest.raises(BenchError, match="not part of this installation"):
        alone._run_module("benchmarks.no_such")


def test_a_benchmark_that_prints_no_figures_says_why() -> None:
    with pytest.raises(BenchError, match=r"benchmarks\.ports ended with 0 without figures: no reason given"):
        alone._run_module("benchmarks.ports")


@pytest.mark.parametrize("logged", ["", "snapshot_in_force version=1\nunit={1}\n"])
def test_figures_are_found_behind_a_log(logged: str) -> None:
    printed = logged + json.dumps({"measures": [{"name": "a"}]}, indent=1)
    assert json.loads(alone.figures_in(printed)) == {"measures": [{"name": "a"}]}


def snapshot_figures(**changed: object) -> dict[str, object]:
    usual = {
        "compile_s": {"median": 0.6, "max": 0.9}, "router_stall_ms": {"median": 30.0, "max": 80.0}, "queries_max": 12,
        "publish_ms": 900.0, "document_bytes": 2_500_000,
    }  # fmt: skip
    return usual | changed


def test_a_snapshot_has_its_bars() -> None:
    report = Report(rounds=1)
    alone.say_snapshot(report, snapshot_figures(router_stall_ms={"median": 51.0, "max": 60.0}))
    assert verdicts(report) == {
        "snapshot, compile": True,
        "snapshot, longest silence of a router that takes it": False,
        "lists of a large installation, most queries": True,
        "snapshot, publication": None,
        "snapshot, size": None,
    }
    assert report.notes["snapshot"]["document_bytes"] == 2_500_000


def phases(**changed: dict[str, object]) -> dict[str, object]:
    usual: dict[str, dict[str, object]] = {
        "healthy": {"p99_ms": 66.0, "ok": True},
        "racing": {"requests": 100_000, "admitted_after_ack": 0, "ok": True},
        "restarted": {"asked": 200, "admitted": 0, "ok": True},
        "lost": {"p99_ms": 1_294.0, "ok": True},
        "cut_off": {"denied_after_s": 49.8, "others_served": True, "ok": True},
    }
    return {"phases": usual | changed}


def test_every_phase_of_revocation_has_a_bar() -> None:
    assert set(alone.REVOCATION_BARS) == set(PHASES) == set(phases()["phases"])
    report = Report(rounds=1)
    alone.say_revocation(report, phases())
    assert list(verdicts(report).values()) == [True] * 5


def test_a_phase_whose_own_condition_fails_is_missed_and_says_so() -> None:
    report = Report(rounds=1)
    nobody_raced = {"requests": 100_000, "admitted_after_ack": 0, "ok": False}
    never_refused = {"denied_after_s": None, "others_served": True, "ok": False}
    alone.say_revocation(report, phases(racing=nobody_raced, cut_off=never_refused))
    found = verdicts(report)
    assert found[alone.ADMITTED] is False and found["cut off, time to refusal"] is False
    assert "a condition of the phase was not met" in table(report, {})


def test_polling_has_its_bars() -> None:
    report = Report(rounds=1)
    result = Result(1_000, "postgresql", 2, 40.0, 2.5, 1.0, 3, ok=False)
    alone.say_poll_scale(report, json.loads(json.dumps(dataclasses.asdict(result))))
    assert verdicts(report) == {
        "1,000 workers polled, CPU": False,
        "1,000 workers polled, stored": True,
        "1,000 workers polled, stale at the end": False,
    }


def test_a_benchmark_may_name_its_measures_itself() -> None:
    report = Report(rounds=1)
    measures = [
        {"name": "records", "unit": "/s", "ours": 5_961.0, "bar": 5_000, "at_least": True},
        {"name": "requests", "unit": "/min", "ours": None, "bar": 100_000, "at_least": True, "why": "not compiled"},
        {"name": "records of CPU", "unit": "/s", "ours": 7_250.0},
    ]
    alone.say_measures(report, "simulator", {"measures": measures, "load": 1})
    assert verdicts(report) == {"records": True, "requests": None, "records of CPU": None}
    assert "requests: not compiled" in table(report, {}) and report.notes["simulator"]["load"] == 1


def test_ingestion_has_its_bars() -> None:
    report = Report(rounds=1)
    results = [ingestion.Result(case.name, 20_000, 5.0, 2.0, stored=case is not ingestion.CASES[1])
               for case in ingestion.CASES]  # fmt: skip
    alone.say_measures(report, "ingestion", {"measures": ingestion.measures(results)})
    found = verdicts(report)
    assert len(found) == 2 * len(ingestion.CASES)
    assert [found[f"ingestion, {case.name}"] for case in ingestion.CASES] == [False, False, None]


def test_the_simulator_has_its_bars() -> None:
    report = Report(rounds=1)
    quick = fleet_scale.Figures("kb8k", 64, 7_500, 3.0, 0.4, compiled=True, load_average=1.0)
    large = fleet_scale.Figures("weka", 1_024, 20_000, 60.0, 4.1, compiled=True, load_average=1.0)
    alone.say_measures(report, "simulator", {"measures": fleet_scale.measures([quick], large)})
    assert verdicts(report) == {
        "simulator, kb8k, 64 workers": True,
        "simulator, weka, 1,024 workers, most memory": False,
    }

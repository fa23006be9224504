"""The benchmarks that need no socket still run, as `make bench` starts them, and print what it reads."""

from __future__ import annotations

from benchmarks import in_process
from benchmarks.report import Report


def test_decisions_are_measured(monkeypatch) -> None:
    monkeypatch.setattr(in_process, "DECISION_ROWS", ((4, 1024), (8, 1024), (4, 4096)))
    monkeypatch.setattr(in_process, "KNOWN_ROWS", ((4, 2048, 600), (4, 4096, 600)))
    monkeypatch.setattr(in_process, "DECISIONS", 60)
    report = Report(rounds=1)
    in_process.measure_decision(report)
    assert len(report.measures) == 7
    assert all(measure.ours and measure.ours > 0 for measure in report.measures)


def test_exact_decisions_are_measured(monkeypatch) -> None:
    monkeypatch.setattr(in_process, "EXACT_ROWS", ((4, 256), (8, 256), (4, 512)))
    monkeypatch.setattr(in_process, "EXACT_DECISIONS", 20)
    report = Report(rounds=1)
    in_process.measure_exact_decision(report)
    assert len(report.measures) == 6 and all(measure.ours and measure.ours > 0 for measure in report.measures)


def test_events_are_measured_and_each_rate_has_its_row(monkeypatch) -> None:
    monkeypatch.setattr(in_process, "CHURN_BLOCKS", 20_000)
    report = Report(rounds=1)
    in_process.measure_events(report)
    found = {measure.name: measure.ours for measure in report.measures}
    assert {f"KV events, {title}" for title in in_process.RATES.values()} < set(found)
    assert 0 < found["index, bytes a block"] < 1000

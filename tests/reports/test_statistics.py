"""Trend, forecast and anomalies against brute force and against tables."""

from __future__ import annotations

import random
from datetime import date, timedelta

import pytest

from controlplane.reports.figures.anomalies import outliers
from controlplane.reports.figures.trend import DAYS_MIN, fit, forecast, t_quantile

FIRST = date(2026, 5, 1)


def _points(values: list[float]) -> list[tuple[date, float]]:
    return [(FIRST + timedelta(days=index), value) for index, value in enumerate(values)]


@pytest.mark.parametrize(("degrees", "table"), [(12, 2.1788), (20, 2.0860), (30, 2.0423), (60, 2.0003), (120, 1.9799)])
def test_the_t_quantile_is_that_of_the_tables(degrees: int, table: float) -> None:
    assert t_quantile(0.975, degrees) == pytest.approx(table, abs=2e-3)


def test_the_interval_holds_the_next_day_about_as_often_as_it_says() -> None:
    rng = random.Random(3)
    inside = 0
    for _ in range(600):
        values = [0.4 + 0.01 * day + rng.gauss(0, 0.05) for day in range(31)]
        line = fit(_points(values[:30]))
        assert line is not None
        _, low, high = line.at(FIRST + timedelta(days=30))
        inside += low <= values[30] <= high
    assert 0.92 <= inside / 600 <= 0.98


def test_it_says_when_the_limit_is_reached_and_between_which_days() -> None:
    rng = random.Random(5)
    row = forecast(
        _points([0.5 + 0.01 * day + rng.gauss(0, 0.01) for day in range(30)]), measure="kv_use", subject="p", limit=0.85
    )
    reached = date.fromisoformat(row["reached"])
    assert abs((reached - (FIRST + timedelta(days=35))).days) <= 2 and row["trend"] == "rises"
    assert date.fromisoformat(row["earliest"]) < reached < date.fromisoformat(row["latest"])


def test_a_falling_figure_reaches_its_limit_from_above() -> None:
    row = forecast(
        _points([1.0 - 0.001 * day for day in range(30)]), measure="goodput", subject="f", limit=0.95, rising=False,
        most=1.0,
    )  # fmt: skip
    assert row["reached"] == (FIRST + timedelta(days=50)).isoformat() and row["trend"] == "falls"
    assert all(0 <= value <= 1 for _, *values in row["line"] for value in values)


def test_a_level_figure_reaches_nothing() -> None:
    rng = random.Random(7)
    row = forecast(_points([0.5 + rng.gauss(0, 0.01) for _ in range(40)]), measure="kv_use", subject="p", limit=0.85)
    assert row["trend"] == "level" and row["reached"] is None


def test_too_little_history_is_said_and_nothing_is_forecast() -> None:
    row = forecast(_points([0.5] * (DAYS_MIN - 1)), measure="kv_use", subject="p", limit=0.85)
    assert row["enough"] is False and "reached" not in row and row["days_min"] == DAYS_MIN
    assert forecast([], measure="kv_use", subject="p", limit=None)["enough"] is False


def test_one_odd_day_stands_out_and_no_other() -> None:
    rng = random.Random(9)
    values = [100 + rng.gauss(0, 3) for _ in range(30)]
    values[12] = 180.0
    [(day, value, usual, score)] = outliers(_points(values))
    assert (day, value) == (FIRST + timedelta(days=12), 180.0) and abs(usual - 100) < 3 and score > 3.5


def test_a_day_stands_out_among_equal_ones_too() -> None:
    assert [row[0] for row in outliers(_points([5.0] * 20 + [9.0] + [5.0] * 9))] == [FIRST + timedelta(days=20)]
    assert outliers(_points([5.0] * 30)) == []
    assert outliers(_points([5.0, 9.0, 5.0])) == []


def test_growth_is_no_anomaly() -> None:
    rng = random.Random(11)
    assert outliers(_points([100 * 1.05**day + rng.gauss(0, 2) for day in range(20)])) == []

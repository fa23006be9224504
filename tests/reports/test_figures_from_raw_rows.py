"""The figures of a report are those that plain arithmetic over the raw rollups gives, by code of its own."""

from __future__ import annotations

import math
from collections import defaultdict
from datetime import date, timedelta
from zoneinfo import ZoneInfo

import pytest

from controlplane.reports.models import ReportRun
from controlplane.telemetry.models import PrefixHeatRollup, RequestRollup, WorkerRollup

pytestmark = pytest.mark.django_db

BERLIN = ZoneInfo("Europe/Berlin")


def _hours(run: ReportRun) -> list[RequestRollup]:
    rows = RequestRollup.objects.filter(width_s=3600)
    return [row for row in rows if run.from_at <= row.start < run.to_at]


def _quantile_ms(rows: list[RequestRollup], fields: tuple[str, ...], share: float) -> float | None:
    """By listing every value: bucket i of the histograms ends at 1.05 to the power of i."""
    values = sorted(
        int(index) for row in rows for field in fields for index, count in getattr(row, field).items()
        for _ in range(count)
    )  # fmt: skip
    return 1.05 ** (values[max(1, math.ceil(share * len(values))) - 1] - 0.5) if values else None


def test_sums_and_shares_of_the_span(fleet_run: ReportRun) -> None:
    rows = _hours(fleet_run)
    told = fleet_run.figures["summary"]
    assert len(rows) > 4000
    assert told["requests"] == sum(row.requests for row in rows)
    assert told["prompt_tokens"] == sum(row.prompt_tokens for row in rows)
    assert told["hit_tokens"] == sum(row.hit_tokens for row in rows)
    known = sum(row.hit_prompt_tokens for row in rows)
    assert told["hit_share"] == pytest.approx(sum(row.hit_tokens for row in rows) / known)
    assert told["goodput"] == pytest.approx(sum(r.slo_met for r in rows) / sum(r.slo_known for r in rows))
    assert told["errors"] == sum(sum(row.errors.values()) for row in rows)
    assert told["violations"] == 0


def test_saved_gpu_time_and_its_price(fleet_run: ReportRun) -> None:
    seconds = sum(row.hit_tokens for row in _hours(fleet_run)) / 9000  # the seed's prefill rate
    assert fleet_run.figures["summary"]["saved_gpu_s"] == pytest.approx(seconds)
    assert fleet_run.figures["summary"]["saved_cost"] == pytest.approx(seconds / 3600 * 3.6)
    assert fleet_run.figures["prefill_tokens_per_s"]["llama"] == pytest.approx(9000)


def test_quantiles_of_ttft(fleet_run: ReportRun) -> None:
    rows, told = _hours(fleet_run), fleet_run.figures["summary"]
    assert told["ttft_hit_p95_ms"] == pytest.approx(_quantile_ms(rows, ("ttft_hit",), 0.95))
    assert told["ttft_miss_p50_ms"] == pytest.approx(_quantile_ms(rows, ("ttft_miss",), 0.5))
    both = ("ttft_hit", "ttft_partial", "ttft_miss", "ttft_unknown")
    assert told["ttft_p95_ms"] == pytest.approx(_quantile_ms(rows, both, 0.95))


def test_each_day_is_a_day_of_the_schedules_zone(fleet_run: ReportRun) -> None:
    rows = defaultdict(list)
    for row in _hours(fleet_run):
        rows[row.start.astimezone(BERLIN).date()].append(row)
    told = {date.fromisoformat(row["day"]): row for row in fleet_run.figures["days"]}
    assert len(told) in (30, 31) and set(rows) <= set(told)
    for day, of_day in rows.items():
        assert told[day]["requests"] == sum(row.requests for row in of_day)
        assert told[day]["hit_tokens"] == sum(row.hit_tokens for row in of_day)
        assert told[day]["ttft_miss_p95_ms"] == pytest.approx(_quantile_ms(of_day, ("ttft_miss",), 0.95))
    whole = [day for day in told if told[day]["whole"]]
    assert all(told[day]["hours_reported"] in (23, 24, 25) for day in whole) and len(whole) >= 29


def test_kv_use_and_time_above_the_watermarks(fleet_run: ReportRun) -> None:
    for told in fleet_run.figures["workers"]:
        rows = [
            row
            for row in WorkerRollup.objects.filter(worker=told["worker"])
            if fleet_run.from_at <= row.start < fleet_run.to_at
        ]
        hours = [row for row in rows if row.width_s == 3600]
        means = [row.kv_use_sum / row.kv_use_samples for row in hours]
        assert told["kv_use_max"] == max(row.kv_use_max for row in hours)
        # The seed writes one minute an hour, equal to the hour: both grains tell the same use.
        assert told["kv_use_mean"] == pytest.approx(sum(means) / len(means), rel=1e-6)
        weight = defaultdict(float)
        for row in rows:
            recent = row.start >= _minutes_from(fleet_run)
            if row.width_s == (60 if recent else 3600):
                use = row.kv_use_sum / row.kv_use_samples
                for name, mark in (("all", -1.0), ("low", 0.65), ("high", 0.85)):
                    weight[name] += row.width_s * (use >= mark)
        assert told["above_low_share"] == pytest.approx(weight["low"] / weight["all"])
        assert told["above_high_share"] == pytest.approx(weight["high"] / weight["all"])
        assert 0 < told["above_low_share"] < 1


def _minutes_from(run: ReportRun):
    """Minutes are kept for seven days; the hour in which they begin to be is read as an hour."""
    edge = run.to_at - timedelta(days=7) + timedelta(hours=1)
    floor = edge.replace(minute=0, second=0, microsecond=0)
    return floor if floor == edge else floor + timedelta(hours=1)


def test_what_eviction_cost(fleet_run: ReportRun) -> None:
    for told in fleet_run.figures["workers"]:
        rows = WorkerRollup.objects.filter(width_s=3600, worker=told["worker"])
        rows = [row for row in rows if fleet_run.from_at <= row.start < fleet_run.to_at]
        restored = sum(row.restored_blocks for row in rows)
        assert told["restored_blocks"] == restored and told["removed_blocks"] == sum(r.removed_blocks for r in rows)
        assert told["lost_tokens"] == restored * 16
        assert told["lost_gpu_s"] == pytest.approx(restored * 16 / 9000)
    [pool] = fleet_run.figures["pools"]
    assert pool["lost_tokens"] == sum(row["lost_tokens"] for row in fleet_run.figures["workers"])


def test_who_asks_for_most(fleet_run: ReportRun) -> None:
    tokens: dict[str, int] = defaultdict(int)
    for row in _hours(fleet_run):
        if row.tenant:
            tokens[row.tenant] += row.prompt_tokens
    expected = sorted(tokens.items(), key=lambda item: -item[1])
    assert [(row["name"], row["prompt_tokens"]) for row in fleet_run.figures["tenants"]] == expected
    requests: dict[str, int] = defaultdict(int)
    for row in PrefixHeatRollup.objects.filter(width_s=3600):
        if fleet_run.from_at <= row.start < fleet_run.to_at:
            requests[row.prefix] += row.requests
    told = fleet_run.figures["prefixes"]
    assert [row["prefix"] for row in told] == sorted(requests, key=lambda key: -requests[key])
    assert [row["requests"] for row in told] == sorted(requests.values(), reverse=True)
    assert told[0]["top_worker"] == "llama/w1" and 0.79 < told[0]["top_share"] < 0.81


def test_the_forecast_is_the_least_squares_line_of_the_busiest_hours(fleet_run: ReportRun) -> None:
    told = next(row for row in fleet_run.figures["forecasts"] if row["measure"] == "kv_use")
    hours = defaultdict(list)
    for row in WorkerRollup.objects.filter(width_s=3600):
        hours[row.start].append(row)
    busiest: dict[date, float] = {}
    for start, rows in hours.items():
        use = sum(row.kv_use_sum for row in rows) / sum(row.kv_use_samples for row in rows)
        day = start.astimezone(BERLIN).date()
        busiest[day] = max(busiest.get(day, 0), use)
    points = [(date.fromisoformat(day), value) for day, value in told["points"]]
    assert all(value == pytest.approx(busiest[day]) for day, value in points) and len(points) >= 28
    n = len(points)
    xs = [(day - points[0][0]).days for day, _ in points]
    ys = [value for _, value in points]
    slope = (n * sum(x * y for x, y in zip(xs, ys, strict=True)) - sum(xs) * sum(ys)) / (
        n * sum(x * x for x in xs) - sum(xs) ** 2
    )
    assert told["slope_per_day"] == pytest.approx(slope)
    at_zero = (sum(ys) - slope * sum(xs)) / n
    days_left = math.ceil((0.85 - at_zero) / slope - xs[-1] - 1e-9)
    assert date.fromisoformat(told["reached"]) == points[-1][0] + timedelta(days=max(0, days_left))
    assert told["earliest"] <= told["reached"] <= told["latest"] and told["trend"] == "rises"


def test_the_odd_day_stands_out_and_the_changes_are_listed(fleet_run: ReportRun) -> None:
    found = [row for row in fleet_run.figures["anomalies"] if row["measure"] == "ttft_miss_p95_ms"]
    assert found and found[0]["value"] > 2 * found[0]["usual"]
    actions = [row["action"] for row in fleet_run.figures["changes"]["rows"]]
    assert actions == ["namespace.update", "template.publish", "watermark.update"]


def test_changes_of_the_fleet_are_simulated_and_recommended_with_evidence(fleet_run: ReportRun) -> None:
    asked = fleet_run.figures["what_if"]
    assert asked["available"], asked
    assert asked["scenarios"][0]["hit_token_share"]["mean"] == pytest.approx(asked["question"]["hit_share"], abs=0.05)
    assert {row["name"] for row in asked["scenarios"]} >= {"as it is", "1 more worker", "1 fewer worker"}
    titles = [row["title"] for row in fleet_run.figures["recommendations"]]
    assert any("reaches its high watermark" in title for title in titles), titles
    assert all(row["evidence"] for row in fleet_run.figures["recommendations"])

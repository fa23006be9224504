"""Sums of requests over the span and of each local day in it, from the rollups of hours."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from typing import Any

from controlplane.reports.figures.span import HOUR_S, Subject
from controlplane.telemetry.merge import REQUESTS, Values, merge_into, merged_counts
from controlplane.telemetry.rollup_rows import quantile_of, request_rows

Figures = dict[str, Any]
FIELDS = (
    "requests", "errors", "prompt_tokens", "output_tokens", "usage_known", "hit_tokens", "hit_known",
    "hit_prompt_tokens", "predicted_hit_tokens", "saved_prefill_ms", "slo_met", "slo_known", "isolation_violations",
    "spills", "ttft_hit", "ttft_partial", "ttft_miss", "ttft_unknown",
)  # fmt: skip
COMPLETE_HOURS = 20
"""Of a day, reported: what is left out then moves no forecast."""
_TTFT = ("ttft_hit", "ttft_partial", "ttft_miss", "ttft_unknown")


def read(subject: Subject) -> tuple[Values | None, dict[date, Values], dict[date, int]]:
    """(sums of the span, sums of each day, hours of each day in which a router reported). None = nobody reported."""
    rows: list[tuple[datetime, Values]] = request_rows(subject.scope, [subject.hours], FIELDS)
    total: Values = {}
    days: dict[date, Values] = {}
    reported: dict[date, set[datetime]] = {}
    for start, values in rows:
        day = subject.day_of(start)
        reported.setdefault(day, set()).add(start)
        merge_into(REQUESTS, total, values)
        merge_into(REQUESTS, days.setdefault(day, {}), values)
    return (total if rows else None), days, {day: len(hours) for day, hours in reported.items()}


def summary(total: Values | None, *, gpu_hour_cost: float | None) -> Figures:
    """The headline figures of a span."""
    if total is None:
        return dict.fromkeys(SUMMARY)
    saved_s = total.get("saved_prefill_ms", 0.0) / 1000
    return {
        **_figures(total),
        "output_tokens": total.get("output_tokens", 0),
        "errors": int(sum(total.get("errors", {}).values())),
        "spills": int(sum(total.get("spills", {}).values())),
        "spills_watermark": int(total.get("spills", {}).get("watermark", 0)),
        "hit_known_share": _share(total, "hit_known", "usage_known"),
        "predicted_share": _share(total, "predicted_hit_tokens", "hit_prompt_tokens"),
        "saved_cost": None if gpu_hour_cost is None else saved_s / HOUR_S * gpu_hour_cost,
        "violations": total.get("isolation_violations", 0),
    }


def daily(subject: Subject, days: Mapping[date, Values], reported: Mapping[date, int]) -> list[Figures]:
    """One row a local day, in order; days in which nobody reported have unknown figures."""
    return [
        {
            "day": day.isoformat(),
            "whole": subject.is_whole(day),
            "hours_reported": reported.get(day, 0),
            "complete": subject.is_whole(day) and reported.get(day, 0) >= COMPLETE_HOURS,
            **(_figures(days[day]) if day in days else dict.fromkeys(DAILY)),
        }
        for day in subject.days()
    ]


def prefill_tokens_per_s(total: Values | None) -> float | None:
    """What the routers have calibrated: tokens that hits saved ÷ the time that they saved."""
    if not total or not total.get("saved_prefill_ms"):
        return None
    return float(total.get("hit_tokens", 0) / total["saved_prefill_ms"] * 1000) or None


DAILY = (
    "requests", "prompt_tokens", "hit_tokens", "hit_share", "saved_gpu_s", "goodput", "ttft_p50_ms", "ttft_p95_ms",
    "ttft_hit_p50_ms", "ttft_hit_p95_ms", "ttft_miss_p50_ms", "ttft_miss_p95_ms",
)  # fmt: skip
SUMMARY = (
    *DAILY, "output_tokens", "errors", "spills", "spills_watermark", "hit_known_share", "predicted_share",
    "saved_cost", "violations",
)  # fmt: skip


def _figures(sums: Values) -> Figures:
    every: dict[str, float] = {}
    for name in _TTFT:
        every = merged_counts(every, sums.get(name, {}))
    hit, miss = sums.get("ttft_hit", {}), sums.get("ttft_miss", {})
    return {
        "requests": sums.get("requests", 0),
        "prompt_tokens": sums.get("prompt_tokens", 0),
        "hit_tokens": sums.get("hit_tokens", 0),
        "hit_share": _share(sums, "hit_tokens", "hit_prompt_tokens"),
        "saved_gpu_s": sums.get("saved_prefill_ms", 0.0) / 1000,
        "goodput": _share(sums, "slo_met", "slo_known"),
        "ttft_p50_ms": quantile_of(every, 0.5),  # type: ignore[arg-type]  # merged counts of whole numbers
        "ttft_p95_ms": quantile_of(every, 0.95),  # type: ignore[arg-type]
        "ttft_hit_p50_ms": quantile_of(hit, 0.5),
        "ttft_hit_p95_ms": quantile_of(hit, 0.95),
        "ttft_miss_p50_ms": quantile_of(miss, 0.5),
        "ttft_miss_p95_ms": quantile_of(miss, 0.95),
    }


def _share(sums: Values, part: str, whole: str) -> float | None:
    return sums.get(part, 0) / sums[whole] if sums.get(whole) else None

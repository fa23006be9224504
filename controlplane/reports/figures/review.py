"""The capacity review: everything that a run freezes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime, timedelta
from math import inf
from typing import Any

from django.db.models import Min

from controlplane.fleet.models import WorkerPool
from controlplane.namespaces.models import CacheNamespace
from controlplane.reports.figures import capacity, days, ranking, trend
from controlplane.reports.figures.anomalies import anomalies, outliers
from controlplane.reports.figures.changes import changes
from controlplane.reports.figures.recommending import GOODPUT_MIN, recommendations
from controlplane.reports.figures.span import HOUR_S, Subject
from controlplane.reports.figures.what_if import what_if
from controlplane.reports.models import ReportRun
from controlplane.telemetry.breaks import KIND_WORDS, breakers
from controlplane.telemetry.windows import floor_to

Figures = dict[str, Any]
Step = Callable[[str], None]
"""Told the name of the step that begins."""
FORMAT = 1
"""Raised when a field of the JSON changes its meaning or goes."""
COMPARABLE_SHARE = 0.8
"""Of the report's own hours, reported in the time before it."""
POOLS_FORECAST_MAX = 20
BREAKERS_SHOWN = 10
HISTORY_DAYS = 60
"""Before the end of a report: what forecasts are made from, whatever the report's own range."""


def review(run: ReportRun, *, now: datetime, step: Step) -> Figures:
    """The figures of `docs/reports.md`, as JSON."""
    subject = Subject.of(run)
    cost = run.settings["gpu_hour_cost"]
    step("requests")
    total, by_day, reported = days.read(subject)
    prefill = _prefill_rates(subject)
    found: Figures = {
        "format": FORMAT,
        "name": run.settings["name"],
        "scope": run.settings["scope"],
        "subject": run.settings["subject"],
        "time_zone": run.settings["time_zone"],
        "from": subject.from_.isoformat(),
        "to": subject.to.isoformat(),
        "made_at": now.isoformat(),
        "missed": run.missed,
        "gpu_hour_cost": cost,
        "currency": run.settings["currency"],
        "hours": _hours(subject, reported),
        "summary": days.summary(total, gpu_hour_cost=cost),
        "before": _before(subject, sum(reported.values()), cost),
        "days": days.daily(subject, by_day, reported),
        "prefill_tokens_per_s": prefill,
    }
    step("capacity")
    marks = {} if subject.tenant else capacity.watermarks(subject)
    found["workers"] = [] if subject.tenant else capacity.by_worker(subject, marks, prefill=prefill)
    found["pools"] = capacity.by_pool(found["workers"], marks)
    step("ranking")
    found["tenants"], found["prefixes"] = ranking.busiest(subject), ranking.hot_prefixes(subject)
    found["breakers"] = _breakers(subject)
    step("forecast")
    found["forecasts"] = _forecasts(subject, marks)
    found["anomalies"] = anomalies(found["days"])
    found["changes"] = changes(subject)
    step("what-if")
    found["what_if"] = what_if(subject, marks, prefill=prefill, slo_ms=_strictest_objective())
    step("recommendations")
    found["recommendations"] = recommendations(found)
    return found


def _before(subject: Subject, hours: int, cost: float | None) -> Figures:
    """The time of equal length before; unknown where much less of it was reported: nothing to compare with."""
    total, _, reported = days.read(subject.before)
    comparable = sum(reported.values()) >= COMPARABLE_SHARE * hours
    return days.summary(total if comparable else None, gpu_hour_cost=cost)


def _prefill_rates(subject: Subject) -> dict[str, float]:
    """Pool → tokens/s of a worker: as its routers have calibrated it, else as it is configured."""
    pools = WorkerPool.objects.filter(**({"slug": subject.pool} if subject.pool else {}))
    rates = {row.slug: row.prefill_tokens_per_s for row in pools if row.prefill_tokens_per_s}
    if subject.tenant:
        return {}
    for pool in pools:
        total, _, _ = days.read(Subject("", pool.slug, subject.from_, subject.to, subject.zone))
        rate = days.prefill_tokens_per_s(total)
        if rate:
            rates[pool.slug] = rate
    return rates


def _forecasts(subject: Subject, marks: capacity.Marks) -> list[Figures]:
    """KV use of each pool against its high watermark, goodput against GOODPUT_MIN, prompt tokens and TTFT."""
    past = replace(subject, from_=min(subject.from_, floor_to(subject.to - timedelta(days=HISTORY_DAYS), HOUR_S)))
    _, by_day, reported = days.read(past)
    rows = [row for row in days.daily(past, by_day, reported) if row["complete"]]
    complete = {row["day"] for row in rows}
    name = subject.tenant or subject.pool or "fleet"
    found = []
    if not subject.tenant:
        busiest = capacity.busiest_hours(past)
        for pool in sorted(busiest)[:POOLS_FORECAST_MAX]:
            points = [(day, value) for day, value in sorted(busiest[pool].items()) if day.isoformat() in complete]
            high = marks[pool][1] if pool in marks else None
            found.append(_forecast(points, measure="kv_use", subject=pool, limit=high, most=1.0))
    for measure, limit, most in (
        ("goodput", GOODPUT_MIN, 1.0),
        ("prompt_tokens", None, inf),
        ("ttft_p95_ms", None, inf),
    ):
        points = [(date.fromisoformat(row["day"]), float(row[measure])) for row in rows if row[measure] is not None]
        rising = measure != "goodput"
        found.append(_forecast(points, measure=measure, subject=name, limit=limit, rising=rising, most=most))
    return found


def _forecast(points: list[tuple[date, float]], **how: Any) -> Figures:
    """Days that stand out are no part of the trend."""
    odd = [day for day, *_ in outliers(points)]
    return trend.forecast([(day, value) for day, value in points if day not in odd], left_out=odd, **how)


def _breakers(subject: Subject) -> list[Figures]:
    """What cuts prefixes off, most lost tokens first."""
    tenants = frozenset({subject.tenant}) if subject.tenant else None
    rows = breakers(now=subject.to, window=subject.to - subject.from_, tenants=tenants)
    return [
        {
            "namespace": row.namespace,
            "pool": row.pool,
            "template": row.template,
            "kind": row.kind,
            "words": KIND_WORDS[row.kind],
            "prompts": row.prompts,
            "share": row.share,
            "lost_tokens": row.lost_tokens_mean * row.prompts,
        }
        for row in rows
        if subject.pool in ("", row.pool)
    ][:BREAKERS_SHOWN]


def _strictest_objective() -> float | None:
    """TTFT in ms."""
    found: float | None = CacheNamespace.objects.aggregate(least=Min("ttft_slo_ms"))["least"]
    return found


def _hours(subject: Subject, reported: dict[date, int]) -> Figures:
    """Whole hours of the span, and those of them in which a router reported."""
    of = int((floor_to(subject.to, HOUR_S) - subject.from_).total_seconds() // HOUR_S)
    return {"reported": min(of, sum(reported.values())), "of": of}

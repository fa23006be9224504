"""What a rule would have done in the last day: its measure read again from rollups and judged step by step.

By the minute; by the hour where a day of minutes is more rows than a page may read. A window then sums whole steps, so
that what began and ended inside of one is not seen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet, Sum

from controlplane.alerts.judging import FIRING, LASTING, OK, RESOLVED, Reading, Standing, next_standing, worst
from controlplane.alerts.measures import MEASURES, SAMPLES_MIN
from controlplane.alerts.models import AlertRule
from controlplane.alerts.readings import FLEET, OUR_ERRORS, TTFT_FIELDS
from controlplane.fleet.models import Worker
from controlplane.isolation.models import IsolationViolation
from controlplane.telemetry.models import RequestRollup, RequestTotal, WorkerRollup
from controlplane.telemetry.rollup_rows import quantile_of
from controlplane.telemetry.windows import floor_to

SPAN = timedelta(hours=24)
ROWS_MAX = 100_000
STEPS_S = (60, 3600)
EPISODES_SHOWN = 20

Column = list[float | None]
"""One value a step; None = unknown."""
Sums = dict[int, dict[str, float]]
"""Step → field → sum."""


@dataclass(frozen=True, slots=True)
class Episode:
    subject: str
    began: datetime
    ended: datetime | None
    """None = it would fire at this moment."""
    worst: float | None


@dataclass(frozen=True, slots=True)
class Preview:
    first: datetime
    step_s: int
    values: Column
    """The worst subject's, step by step."""
    fired: int
    episodes: list[Episode]
    """Newest first, EPISODES_SHOWN at most."""
    firing_s: int
    """Of all subjects, added up."""
    unknown_share: float
    reason: str = ""
    """Why nothing can be said."""

    def starts(self) -> list[datetime]:
        return [self.first + timedelta(seconds=self.step_s * index) for index in range(len(self.values))]


@dataclass(frozen=True, slots=True)
class _Grid:
    first: datetime
    step_s: int
    count: int

    def index(self, at: datetime) -> int | None:
        index = int((at - self.first).total_seconds() // self.step_s)
        return index if 0 <= index < self.count else None

    def window(self, rule: AlertRule) -> int:
        return max(1, round(rule.window_s / self.step_s))


def preview(rule: AlertRule, *, now: datetime) -> Preview:
    """Of a rule that need not be stored. At most four queries."""
    measure = MEASURES[rule.measure]
    if not measure.has_history:
        grid = _grid(now, STEPS_S[0])
        return Preview(grid.first, grid.step_s, [], 0, [], 0, 1.0, f"{measure.label} leaves no history to look at.")
    rows = _rows(rule, now)
    grid = _grid(now, rows.step_s)
    columns = COLUMNS[rule.measure](rule, grid, rows.found)
    return _judged(rule, grid, columns)


def _grid(now: datetime, step_s: int) -> _Grid:
    """The step that still fills is left out."""
    end = floor_to(now, step_s)
    return _Grid(end - SPAN, step_s, int(SPAN.total_seconds()) // step_s)


@dataclass(frozen=True, slots=True)
class _Rows:
    step_s: int
    found: QuerySet[Any]


def _rows(rule: AlertRule, now: datetime) -> _Rows:
    """The rows of the finest width of which a day is few enough. Only a tenant's are told apart by tenant."""
    of_workers = rule.measure in ("worker_silent_s", "event_gaps", "kv_use")
    model: Any = WorkerRollup if of_workers else RequestRollup if rule.tenant else RequestTotal
    for step_s in STEPS_S:
        rows = model.objects.filter(width_s=step_s, start__gte=now - SPAN - timedelta(seconds=step_s), start__lt=now)
        if of_workers and rule.pool:
            rows = rows.filter(worker__startswith=f"{rule.pool}/")
        if not of_workers:
            wanted = {name: getattr(rule, name) for name in ("tenant", "pool") if getattr(rule, name)}
            rows = rows.filter(**wanted)
        if step_s == STEPS_S[-1] or not rows.order_by()[ROWS_MAX : ROWS_MAX + 1].exists():
            return _Rows(step_s, rows.order_by())
    raise AssertionError("the last width is always taken")


def _judged(rule: AlertRule, grid: _Grid, columns: Mapping[str, Column]) -> Preview:
    episodes: list[Episode] = []
    for subject, column in columns.items():
        episodes += _episodes(rule, grid, subject, column)
    known = [[value for value in step if value is not None] for step in zip(*columns.values(), strict=True)]
    total = sum(len(column) for column in columns.values())
    unknown = sum(value is None for column in columns.values() for value in column)
    end = grid.first + timedelta(seconds=grid.step_s * grid.count)
    return Preview(
        first=grid.first,
        step_s=grid.step_s,
        values=[worst(rule, values) for values in known],
        fired=len(episodes),
        episodes=sorted(episodes, key=lambda item: item.began, reverse=True)[:EPISODES_SHOWN],
        firing_s=int(sum(((item.ended or end) - item.began).total_seconds() for item in episodes)),
        unknown_share=unknown / total if total else 1.0,
        reason="" if unknown < total else "Nothing was reported in the last 24 h.",
    )


def _episodes(rule: AlertRule, grid: _Grid, subject: str, column: Column) -> list[Episode]:
    standing, found = Standing(OK, grid.first), []
    began: datetime | None = None
    seen: list[float] = []
    for index, value in enumerate(column):
        at = grid.first + timedelta(seconds=grid.step_s * (index + 1))  # a value is known when its step is over
        standing = next_standing(rule, standing, Reading(subject, value), at)
        if standing.state == FIRING and began is None:
            began, seen = at, []
        if standing.state in LASTING and value is not None:
            seen.append(value)
        if standing.state == RESOLVED and began is not None:
            found.append(Episode(subject, began, at, worst(rule, seen)))
            began, standing = None, Standing(OK, at)
    return found + ([Episode(subject, began, None, worst(rule, seen))] if began is not None else [])


def _subject(rule: AlertRule) -> str:
    return rule.tenant or rule.pool or FLEET


def _rolling(sums: Sums, grid: _Grid, window: int, value_of: Callable[[Mapping[str, float]], float | None]) -> Column:
    """The value of the sums of the last `window` steps, at each step."""
    found: Column = []
    for index in range(grid.count):
        total: dict[str, float] = defaultdict(float)
        for step in range(max(0, index - window + 1), index + 1):
            for name, value in sums.get(step, {}).items():
                total[name] += value
        found.append(value_of(total))
    return found


def _share(part: str, whole: str, counted: str) -> Callable[[AlertRule, _Grid, QuerySet[Any]], dict[str, Column]]:
    def columns(rule: AlertRule, grid: _Grid, rows: QuerySet[Any]) -> dict[str, Column]:
        fields = tuple({part, whole, counted})
        sums: Sums = {}
        for start, *values in rows.values_list("start").annotate(*(Sum(name) for name in fields)):
            index = grid.index(start)
            if index is not None:
                sums[index] = dict(zip(fields, values, strict=True))

        def value_of(total: Mapping[str, float]) -> float | None:
            return total[part] / total[whole] if total.get(counted, 0) >= SAMPLES_MIN and total[whole] else None

        return {_subject(rule): _rolling(sums, grid, grid.window(rule), value_of)}

    return columns


def _errors(rule: AlertRule, grid: _Grid, rows: QuerySet[Any]) -> dict[str, Column]:
    sums: Sums = defaultdict(lambda: {"failed": 0.0, "requests": 0.0})
    for start, requests, errors in rows.values_list("start", "requests", "errors"):
        index = grid.index(start)
        if index is not None:
            sums[index]["requests"] += requests
            sums[index]["failed"] += sum(count for kind, count in errors.items() if kind in OUR_ERRORS)

    def value_of(total: Mapping[str, float]) -> float | None:
        requests = total.get("requests", 0)
        return total["failed"] / requests if requests >= SAMPLES_MIN else None

    return {_subject(rule): _rolling(sums, grid, grid.window(rule), value_of)}


def _ttft(rule: AlertRule, grid: _Grid, rows: QuerySet[Any]) -> dict[str, Column]:
    sums: Sums = defaultdict(lambda: defaultdict(float))
    for start, *histograms in rows.values_list("start", *TTFT_FIELDS):
        index = grid.index(start)
        for histogram in histograms if index is not None else ():
            for bucket, count in histogram.items():
                sums[index or 0][bucket] += count

    def value_of(total: Mapping[str, float]) -> float | None:
        counts = {bucket: int(count) for bucket, count in total.items()}
        return quantile_of(counts, 0.95) if sum(counts.values()) >= SAMPLES_MIN else None

    return {_subject(rule): _rolling(sums, grid, grid.window(rule), value_of)}


def _violations(rule: AlertRule, grid: _Grid, rows: QuerySet[Any]) -> dict[str, Column]:
    wanted = {name: getattr(rule, name) for name in ("tenant", "pool") if getattr(rule, name)}
    found = IsolationViolation.objects.filter(**wanted).order_by().values_list("at", "acknowledged_at")[:ROWS_MAX]
    stretches = list(found)
    checked: Sums = {}
    for start, count in rows.values_list("start").annotate(Sum("isolation_checked")):
        index = grid.index(start)
        if index is not None:
            checked[index] = {"checked": count}
    looked_at = _rolling(checked, grid, grid.window(rule), lambda total: total.get("checked", 0.0))
    column: Column = []
    for index, seen in enumerate(looked_at):
        at = grid.first + timedelta(seconds=grid.step_s * (index + 1))
        still = sum(begun <= at and (ended is None or ended > at) for begun, ended in stretches)
        column.append(float(still) if still or seen else None)
    return {_subject(rule): column}


def _of_workers(
    fields: Sequence[str], value_of: Callable[[Mapping[str, float]], float | None]
) -> Callable[[AlertRule, _Grid, QuerySet[Any]], dict[str, Column]]:
    def columns(rule: AlertRule, grid: _Grid, rows: QuerySet[Any]) -> dict[str, Column]:
        sums = _worker_sums(grid, rows, fields)
        return {worker: _rolling(own, grid, grid.window(rule), value_of) for worker, own in sorted(sums.items())}

    return columns


def _worker_sums(grid: _Grid, rows: QuerySet[Any], fields: Sequence[str]) -> dict[str, Sums]:
    sums: dict[str, Sums] = defaultdict(dict)
    for start, worker, *values in rows.values_list("start", "worker", *fields):
        index = grid.index(start)
        if index is not None:
            sums[worker][index] = dict(zip(fields, values, strict=True))
    return sums


def _silent(rule: AlertRule, grid: _Grid, rows: QuerySet[Any]) -> dict[str, Column]:
    """Of workers that should serve at this moment: whole steps without a good poll."""
    serving = Worker.objects.select_related("pool").exclude(state=Worker.State.MAINTENANCE)
    known = {worker.worker_id for worker in serving}
    sums = _worker_sums(grid, rows, ("polls_ok",))
    columns = {}
    for worker in sorted(known & set(sums)):
        silent: float | None = None
        column: Column = []
        for index in range(grid.count):
            good = sums[worker].get(index, {}).get("polls_ok", 0) > 0
            silent = 0.0 if good else None if silent is None else silent + grid.step_s
            column.append(silent)
        columns[worker] = column
    return columns


def _gaps(total: Mapping[str, float]) -> float | None:
    return total["event_gaps"] if total.get("kv_samples") else None


def _use(total: Mapping[str, float]) -> float | None:
    return total["kv_use_sum"] / total["kv_use_samples"] if total.get("kv_use_samples") else None


COLUMNS: dict[str, Callable[[AlertRule, _Grid, QuerySet[Any]], dict[str, Column]]] = {
    "hit_share": _share("hit_tokens", "hit_prompt_tokens", "hit_known"),
    "goodput_share": _share("slo_met", "slo_known", "slo_known"),
    "error_share": _errors,
    "ttft_p95_ms": _ttft,
    "violations": _violations,
    "worker_silent_s": _silent,
    "event_gaps": _of_workers(("event_gaps", "kv_samples"), _gaps),
    "kv_use": _of_workers(("kv_use_sum", "kv_use_samples"), _use),
}

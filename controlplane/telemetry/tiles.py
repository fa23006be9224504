"""The figures of the fleet page's head: sums over the scope and over the span of equal length before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from controlplane.fleet.models import Worker
from controlplane.fleet.selectors import WorkerRow, workers_table
from controlplane.telemetry.bucket_reading import read_buckets
from controlplane.telemetry.figures import Figure, Tiles, WorkerCounts
from controlplane.telemetry.merge import REQUESTS, Values, merge_into
from controlplane.telemetry.rollup_rows import RequestReading, quantile_of
from controlplane.telemetry.sources import Spoken, router_data_age_s
from controlplane.telemetry.windows import Scope, Segment, aligned_pair, cover

TILE_FIELDS = (
    "requests", "errors", "usage_known", "hit_known", "hit_tokens", "hit_prompt_tokens", "predicted_hit_tokens",
    "saved_prefill_ms", "slo_met", "slo_known", "isolation_violations", "ttft_hit", "ttft_miss", "decision_us",
)  # fmt: skip


def tile_segments(scope: Scope, *, now: datetime, by: timedelta | None = None) -> list[Segment]:
    """The rows of the scope and of the one it is compared with."""
    return [part for span in aligned_pair(scope, now=now, by=by) for part in cover(span, now=now)]


def fleet_tiles(
    scope: Scope,
    *,
    now: datetime | None = None,
    by: timedelta | None = None,
    workers: Sequence[WorkerRow] | None = None,
    reading: RequestReading | None = None,
    spoken: Spoken | None = None,
) -> Tiles:
    """The figures of the fleet page's head, each with the same span `by` earlier; None: the period before.

    Two queries, and those of `workers_table`. `workers`, `reading` (of `tile_segments` at least, with TILE_FIELDS) and
    `spoken`: by whoever has them already.
    """
    now = now or timezone.now()
    current_span, previous_span = aligned_pair(scope, now=now, by=by)
    reading = reading or read_buckets(scope, tile_segments(scope, now=now, by=by), TILE_FIELDS)
    current = _period(reading, current_span, min(scope.to, now), now)
    previous = _period(reading, previous_span, previous_span.to, now)
    figures = _tile_figures(current, previous)
    return Tiles(
        **figures,
        **_worker_figures(scope, workers_table(now=now) if workers is None else workers),
        data_age_s=router_data_age_s(now, spoken=spoken),
    )


@dataclass(frozen=True, slots=True)
class _Period:
    """Summed fields of a period, None when no row was there, and the seconds since its first row."""

    sums: Values | None
    seconds: float
    """A fleet that began to report in the middle of the range has the rate of its own time, not of the range."""

    def share(self, part: str, whole: str) -> float | None:
        return _ratio(self.sums.get(part, 0), self.sums.get(whole, 0)) if self.sums else None

    def rate(self, name: str, factor: float = 1.0) -> float | None:
        return None if self.sums is None else self.sums.get(name, 0) * factor / self.seconds

    def quantile(self, name: str, q: float) -> float | None:
        return quantile_of(self.sums.get(name, {}), q) if self.sums else None

    def errors_per_s(self) -> float | None:
        return None if self.sums is None else sum(self.sums.get("errors", {}).values()) / self.seconds

    def count(self, name: str) -> float | None:
        return None if self.sums is None else float(self.sums.get(name, 0))


def _tile_figures(current: _Period, previous: _Period) -> dict[str, Any]:
    def figure(unit: str, ask: Callable[[_Period], float | None]) -> Figure:
        return Figure(value=ask(current), previous=ask(previous), unit=unit)

    return {
        "hit_share": figure("share", lambda p: p.share("hit_tokens", "hit_prompt_tokens")),
        "predicted_share": figure("share", lambda p: p.share("predicted_hit_tokens", "hit_prompt_tokens")),
        "hit_known_share": figure("share", lambda p: p.share("hit_known", "usage_known")),
        "prefill_tokens_saved_per_s": figure("tokens/s", lambda p: p.rate("hit_tokens")),
        # Milliseconds saved a second, times 3600 s/h, over 1000 ms/s.
        "gpu_seconds_saved_per_h": figure("s/h", lambda p: p.rate("saved_prefill_ms", 3.6)),
        "ttft_hit_p50_ms": figure("ms", lambda p: p.quantile("ttft_hit", 0.5)),
        "ttft_hit_p95_ms": figure("ms", lambda p: p.quantile("ttft_hit", 0.95)),
        "ttft_miss_p50_ms": figure("ms", lambda p: p.quantile("ttft_miss", 0.5)),
        "ttft_miss_p95_ms": figure("ms", lambda p: p.quantile("ttft_miss", 0.95)),
        "goodput_share": figure("share", lambda p: p.share("slo_met", "slo_known")),
        "requests_per_s": figure("requests/s", lambda p: p.rate("requests")),
        "errors_per_s": figure("errors/s", lambda p: p.errors_per_s()),
        "violations": figure("count", lambda p: p.count("isolation_violations")),
        "decision_p50_us": figure("us", lambda p: p.quantile("decision_us", 0.5)),
        "decision_p99_us": figure("us", lambda p: p.quantile("decision_us", 0.99)),
    }


def _period(reading: RequestReading, span: Scope, end: datetime, now: datetime) -> _Period:
    """The tiles' fields over the span."""
    total: Values = {}
    rows = reading.within(cover(span, now=now))
    for _, values in rows:
        merge_into(REQUESTS, total, {name: values[name] for name in TILE_FIELDS} if values else values)
    first = min((start for start, _ in rows), default=span.from_)
    return _Period(total if rows else None, max(1.0, (end - max(first, span.from_)).total_seconds()))


def _worker_figures(scope: Scope, workers: Sequence[WorkerRow]) -> dict[str, Any]:
    rows = [row for row in workers if scope.pool in ("", row.pool) and scope.worker in ("", row.worker_id)]
    up = [row for row in rows if row.health == "ok"]
    waiting = [row.waiting for row in up if row.waiting is not None]
    uses = [row.kv_use for row in up if row.kv_use is not None]
    ages = [row.poll_age_s for row in up if row.poll_age_s is not None]
    by_state = Counter(row.state for row in up)
    return {
        "waiting": Figure(sum(waiting) if waiting else None, None, "requests"),
        "kv_use_max": Figure(max(uses, default=None), None, "share"),
        "workers": WorkerCounts(
            ready=by_state[Worker.State.READY],
            drain=by_state[Worker.State.DRAIN],
            maintenance=by_state[Worker.State.MAINTENANCE],
            down=sum(row.health in ("down", "stale") for row in rows),
            unknown=sum(row.health == "unknown" for row in rows),
        ),
        "poll_age_s": max(ages, default=None),
    }


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None

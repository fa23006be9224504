"""Every figure of one rendering, each asked for once, however many panels show it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any

from controlplane.fleet.models import Finding
from controlplane.fleet.selectors import WorkerRow, open_findings, workers_table
from controlplane.isolation.canary_selectors import Row as CanaryRow
from controlplane.isolation.canary_selectors import canary_matrix
from controlplane.isolation.models import IsolationViolation
from controlplane.isolation.selectors import (
    COVERAGE_FIELDS,
    Attention,
    Coverage,
    coverage_segments,
    isolation_coverage,
    needs_attention,
    violations,
)
from controlplane.telemetry import selectors as telemetry
from controlplane.telemetry.bucket_reading import read_buckets
from controlplane.telemetry.figures import (
    ChurnSeries,
    HeatMap,
    HitTokensSeries,
    KvUseSeries,
    RouterRow,
    SourceFreshness,
    SourceSeries,
    SpillSeries,
    Tiles,
    TtftSeries,
)
from controlplane.telemetry.rollup_rows import RequestReading
from controlplane.telemetry.selectors import SERIES_FIELDS, WorkerSums
from controlplane.telemetry.sources import Spoken, last_spoken
from controlplane.telemetry.tiles import TILE_FIELDS, tile_segments
from controlplane.telemetry.windows import Scope, Segment, grid_of
from controlplane.telemetry.worker_sums import worker_sums
from dashboard.scope import PageState

VIOLATIONS_SHOWN = 8
ATTENTION_SHOWN = 12
FINDINGS_READ_MAX = 1000
"""Of those that are open: far above what anybody looks at, below what a page has time for."""


@dataclass(frozen=True)
class PageData:
    """Lazily asked figures of `state` at `now`; never kept beyond one rendering."""

    state: PageState
    now: datetime

    def ask[Answer](self, question: Callable[..., Answer], **options: Any) -> Answer:
        """`question(scope, now=now, **options)`, asked once however many panels show it. Options are hashable."""
        key = (question, tuple(sorted(options.items())))
        if key not in self._answers:
            self._answers[key] = question(self.scope, now=self.now, **options)
        answer: Answer = self._answers[key]
        return answer

    def once[Answer](self, make: Callable[[PageData], Answer]) -> Answer:
        """`make(self)`, made once however many panels show it."""
        if make not in self._answers:
            self._answers[make] = make(self)
        answer: Answer = self._answers[make]
        return answer

    @cached_property
    def _answers(self) -> dict[Any, Any]:
        return {}

    @cached_property
    def scope(self) -> Scope:
        return self.state.scope(self.now)

    @cached_property
    def earlier(self) -> Scope | None:
        """What the scope is compared with."""
        return self.scope.earlier(self.state.compared_by) if self.state.compares else None

    @cached_property
    def _grids(self) -> list[Segment]:
        """The rows of the series, and of those they are compared with."""
        scopes = [self.scope, self.earlier] if self.earlier else [self.scope]
        return [grid_of(scope, now=self.now).segment for scope in scopes]

    @cached_property
    def _requests(self) -> RequestReading:
        """One reading for tiles, series and coverage."""
        segments = [
            *self._grids,
            *tile_segments(self.scope, now=self.now, by=self.state.compared_by),
            *coverage_segments(self.scope, now=self.now),
        ]
        return read_buckets(self.scope, segments, sorted({*SERIES_FIELDS, *TILE_FIELDS, *COVERAGE_FIELDS}))

    @cached_property
    def _workers_sums(self) -> WorkerSums:
        return worker_sums(self.scope, self._grids)

    @cached_property
    def _of_requests(self) -> tuple[HitTokensSeries, TtftSeries]:
        return telemetry.hits_and_ttft(self.scope, now=self.now, reading=self._requests)

    @cached_property
    def _of_requests_earlier(self) -> tuple[HitTokensSeries, TtftSeries] | None:
        if self.earlier is None:
            return None
        return telemetry.hits_and_ttft(self.earlier, now=self.now, reading=self._requests)

    @cached_property
    def _of_workers(self) -> tuple[SourceSeries, ChurnSeries]:
        return telemetry.sources_and_churn(self.scope, now=self.now, sums=self._workers_sums)

    @cached_property
    def _of_workers_earlier(self) -> tuple[SourceSeries, ChurnSeries] | None:
        if self.earlier is None:
            return None
        return telemetry.sources_and_churn(self.earlier, now=self.now, sums=self._workers_sums)

    @cached_property
    def tiles(self) -> Tiles:
        return telemetry.fleet_tiles(
            self.scope,
            now=self.now,
            by=self.state.compared_by,
            workers=self.every_worker,
            reading=self._requests,
            spoken=self._spoken,
        )

    @cached_property
    def hits(self) -> HitTokensSeries:
        return self._of_requests[0]

    @cached_property
    def hits_earlier(self) -> HitTokensSeries | None:
        return self._of_requests_earlier and self._of_requests_earlier[0]

    @cached_property
    def sources(self) -> SourceSeries:
        return self._of_workers[0]

    @cached_property
    def sources_earlier(self) -> SourceSeries | None:
        return self._of_workers_earlier and self._of_workers_earlier[0]

    @cached_property
    def ttft(self) -> TtftSeries:
        return self._of_requests[1]

    @cached_property
    def ttft_earlier(self) -> TtftSeries | None:
        return self._of_requests_earlier and self._of_requests_earlier[1]

    @cached_property
    def heat(self) -> HeatMap:
        ids = [row.worker_id for row in self.every_worker]
        return self.ask(telemetry.heat_map, measure=self.state.m, workers=tuple(ids))

    @cached_property
    def kv_use(self) -> KvUseSeries:
        return telemetry.kv_use_series(self.scope, now=self.now, sums=self._workers_sums)

    @cached_property
    def churn(self) -> ChurnSeries:
        return self._of_workers[1]

    @cached_property
    def churn_earlier(self) -> ChurnSeries | None:
        return self._of_workers_earlier and self._of_workers_earlier[1]

    @cached_property
    def spills(self) -> SpillSeries:
        return telemetry.spill_series(self.scope, now=self.now)

    @cached_property
    def _findings(self) -> list[Finding]:
        """Open ones, newest first."""
        return open_findings(limit=FINDINGS_READ_MAX)

    @cached_property
    def every_worker(self) -> list[WorkerRow]:
        """Whatever the scope."""
        by_subject: dict[str, list[Finding]] = {}
        for finding in self._findings:
            by_subject.setdefault(finding.subject, []).append(finding)
        return [replace(row, findings=by_subject.get(row.worker_id, [])) for row in self.bare_workers]

    @cached_property
    def bare_workers(self) -> list[WorkerRow]:
        """Every worker without its findings."""
        return workers_table(now=self.now, findings=())

    @cached_property
    def workers(self) -> list[WorkerRow]:
        return [row for row in self.every_worker if self.state.pool in ("", row.pool)]

    @cached_property
    def attention(self) -> list[Attention]:
        return needs_attention(
            now=self.now,
            limit=ATTENTION_SHOWN,
            workers=self.every_worker,
            sources=self.freshness,
            findings=self._findings,
        )

    @cached_property
    def coverage(self) -> Coverage:
        return isolation_coverage(self.scope, now=self.now, reading=self._requests)

    @cached_property
    def violations(self) -> list[IsolationViolation]:
        return violations(self.scope, limit=VIOLATIONS_SHOWN)

    @cached_property
    def canaries(self) -> list[CanaryRow]:
        return canary_matrix(now=self.now, pool=self.state.pool, worker=self.state.worker)

    @cached_property
    def _spoken(self) -> Spoken:
        return last_spoken()

    @cached_property
    def freshness(self) -> list[SourceFreshness]:
        return telemetry.freshness(now=self.now, spoken=self._spoken, workers=self.bare_workers)

    @cached_property
    def routers(self) -> list[RouterRow]:
        return telemetry.routers(now=self.now)

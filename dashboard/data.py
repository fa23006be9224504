"""Every figure of one rendering, each asked for once, however many panels show it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from controlplane.fleet.selectors import WorkerRow, workers_table
from controlplane.isolation.models import IsolationViolation
from controlplane.isolation.selectors import Attention, Coverage, isolation_coverage, needs_attention, violations
from controlplane.telemetry import selectors as telemetry
from controlplane.telemetry.figures import (
    ChurnSeries,
    HeatMap,
    HitTokensSeries,
    HotPrefix,
    RouterRow,
    SourceFreshness,
    SourceSeries,
    SpillSeries,
    Tiles,
    TtftSeries,
)
from controlplane.telemetry.windows import Scope
from dashboard.scope import PageState

VIOLATIONS_SHOWN = 8
ATTENTION_SHOWN = 12
HOT_PREFIXES_SHOWN = 8


@dataclass(frozen=True)
class PageData:
    """Lazily asked figures of `state` at `now`; never kept beyond one rendering."""

    state: PageState
    now: datetime

    @cached_property
    def scope(self) -> Scope:
        return self.state.scope(self.now)

    @cached_property
    def tiles(self) -> Tiles:
        return telemetry.fleet_tiles(self.scope, now=self.now)

    @cached_property
    def hits(self) -> HitTokensSeries:
        return telemetry.hit_tokens_series(self.scope, now=self.now)

    @cached_property
    def sources(self) -> SourceSeries:
        return telemetry.prompt_by_source_series(self.scope, now=self.now)

    @cached_property
    def ttft(self) -> TtftSeries:
        return telemetry.ttft_series(self.scope, now=self.now)

    @cached_property
    def heat(self) -> HeatMap:
        return telemetry.heat_map(self.scope, self.state.m, now=self.now)

    @cached_property
    def kv_heat(self) -> HeatMap:
        """The heat map of KV use, for the tile's sparkline, whatever measure the panel shows."""
        return self.heat if self.state.m == "kv_use" else telemetry.heat_map(self.scope, "kv_use", now=self.now)

    @cached_property
    def churn(self) -> ChurnSeries:
        return telemetry.churn_series(self.scope, now=self.now)

    @cached_property
    def spills(self) -> SpillSeries:
        return telemetry.spill_series(self.scope, now=self.now)

    @cached_property
    def hot_prefixes(self) -> list[HotPrefix]:
        return telemetry.hot_prefixes(self.scope, limit=HOT_PREFIXES_SHOWN, now=self.now)

    @cached_property
    def workers(self) -> list[WorkerRow]:
        return workers_table(pool=self.state.pool, now=self.now)

    @cached_property
    def attention(self) -> list[Attention]:
        return needs_attention(now=self.now, limit=ATTENTION_SHOWN)

    @cached_property
    def coverage(self) -> Coverage:
        return isolation_coverage(self.scope, now=self.now)

    @cached_property
    def violations(self) -> list[IsolationViolation]:
        return violations(self.scope, limit=VIOLATIONS_SHOWN)

    @cached_property
    def freshness(self) -> list[SourceFreshness]:
        return telemetry.freshness(now=self.now)

    @cached_property
    def routers(self) -> list[RouterRow]:
        return telemetry.routers(now=self.now)

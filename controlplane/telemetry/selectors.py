"""Questions the dashboard and the reports ask of the rollups. Everything unknown is None; sums over buckets
without rows are gaps. Each function takes at most three queries.
"""

from __future__ import annotations

from datetime import datetime

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


def last_minutes(minutes: float, *, now: datetime | None = None, tenant: str = "", namespace: str = "") -> Scope:
    """The scope that ends now."""
    raise NotImplementedError


def fleet_tiles(scope: Scope, *, now: datetime | None = None) -> Tiles:
    """The figures of the fleet page's head, each with the period before."""
    raise NotImplementedError


def hit_tokens_series(scope: Scope, *, now: datetime | None = None) -> HitTokensSeries:
    raise NotImplementedError


def prompt_by_source_series(scope: Scope, *, now: datetime | None = None) -> SourceSeries:
    """Honours the scope's pool and worker only: workers do not know tenants."""
    raise NotImplementedError


def ttft_series(scope: Scope, *, now: datetime | None = None) -> TtftSeries:
    raise NotImplementedError


def heat_map(scope: Scope, measure: str, *, now: datetime | None = None) -> HeatMap:
    """`measure`: a key of `figures.HEAT_MEASURES`; anything else raises ValueError."""
    raise NotImplementedError


def churn_series(scope: Scope, *, now: datetime | None = None) -> ChurnSeries:
    """Honours the scope's pool and worker only."""
    raise NotImplementedError


def spill_series(scope: Scope, *, now: datetime | None = None) -> SpillSeries:
    raise NotImplementedError


def hot_prefixes(scope: Scope, *, limit: int = 20, now: datetime | None = None) -> list[HotPrefix]:
    """Most requested prefixes, busiest first. Honours tenant, namespace and pool."""
    raise NotImplementedError


def freshness(*, now: datetime | None = None) -> list[SourceFreshness]:
    """Routers, KV-event subscriber and polls: when each last spoke."""
    raise NotImplementedError


def routers(*, now: datetime | None = None) -> list[RouterRow]:
    """Routers heard of within the last ten minutes."""
    raise NotImplementedError

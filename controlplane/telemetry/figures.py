"""What the selectors return: figures with units, None for unknown. An absent bucket is a gap, never a zero."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

Values = list[float | None]
"""One value a bucket of the series' `buckets`; None = nothing was reported there."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A number of the scope and the same number of the period of equal length before it."""

    value: float | None
    previous: float | None
    unit: str
    """`share` (0…1), `tokens/s`, `s/h` (GPU-seconds per hour), `ms`, `requests`, `requests/s`, `errors/s`, `count`."""


@dataclass(frozen=True, slots=True)
class WorkerCounts:
    ready: int
    drain: int
    maintenance: int
    down: int
    """Last polls failed or too old, whatever the wanted state; these are not counted in the other three."""
    unknown: int
    """Never polled."""


@dataclass(frozen=True, slots=True)
class Tiles:
    hit_share: Figure
    """Delivered: hit tokens ÷ prompt tokens, over requests whose worker named its cached tokens."""
    predicted_share: Figure
    """Predicted by the router for the same requests."""
    hit_known_share: Figure
    """Requests whose cached tokens are known ÷ requests with a usage block: how much the two above speak for."""
    prefill_tokens_saved_per_s: Figure
    gpu_seconds_saved_per_h: Figure
    ttft_hit_p50_ms: Figure
    ttft_hit_p95_ms: Figure
    ttft_miss_p50_ms: Figure
    ttft_miss_p95_ms: Figure
    goodput_share: Figure
    """Requests within their namespace's TTFT objective ÷ requests that have one."""
    requests_per_s: Figure
    errors_per_s: Figure
    violations: Figure
    decision_p50_us: Figure
    decision_p99_us: Figure
    waiting: Figure
    """Requests waiting at all workers at their last good poll; no previous value."""
    kv_use_max: Figure
    """Largest KV use of any worker at its last good poll, 0…1; no previous value."""
    workers: WorkerCounts
    data_age_s: float | None
    """Seconds since the newest second of router telemetry; None = none ever arrived."""
    poll_age_s: float | None
    """Seconds since the oldest last good poll among workers not down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Common head of the series. Bucket i covers [buckets[i], buckets[i] + step_s)."""

    buckets: list[datetime]
    step_s: int
    open_from: datetime | None
    """Buckets that start here or later still fill: draw them apart or leave them out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HitTokensSeries(Series):
    """Tokens a bucket."""

    prompt_tokens: Values
    delivered_hit_tokens: Values
    predicted_hit_tokens: Values
    unknown_prompt_share: Values
    """Prompt tokens of requests without known cached tokens ÷ all prompt tokens, 0…1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSeries(Series):
    """Prompt tokens by where their KV came from, as the workers count: `local_compute`, `local_cache_hit`, …"""

    by_source: dict[str, Values]
    loaded_bytes: Values
    """KV loaded from other tiers and workers; 0 where no connector counts it."""
    load_ms: Values
    """Time of those transfers, added up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TtftSeries(Series):
    """Milliseconds; hit = at least half of the prompt cached, miss = nothing cached."""

    hit_p50_ms: Values
    hit_p95_ms: Values
    miss_p50_ms: Values
    miss_p95_ms: Values
    delta_p50_ms: Values
    """miss − hit, where both are known."""
    hit_count: Values
    miss_count: Values


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap(Series):
    """Workers × buckets. `values[row][bucket]`; rows follow `workers`."""

    measure: str
    unit: str
    workers: list[str]
    values: list[Values]
    left_out: int = 0
    """Workers that are not drawn: those shown have the highest mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvUseSeries(Series):
    kv_use_max: Values
    """Of the fullest worker, 0…1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChurnSeries(Series):
    """Blocks per minute of the workers that reported, from KV events."""

    stored_per_min: Values
    removed_per_min: Values
    net_per_min: Values
    restored_per_min: Values
    """Stored again within 300 s of their removal: evictions that cost a recompute."""
    gaps: Values
    """Event gaps a bucket (count)."""


@dataclass(frozen=True, slots=True)
class HotPrefix:
    prefix: str
    """Keyed id, 16 hex digits: not a block hash."""
    namespace: str
    pool: str
    tokens: int
    requests: int
    by_worker: dict[str, int]
    top_share: float
    """Share of the busiest worker, 0…1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpillSeries(Series):
    """Requests a bucket that left their preferred worker, by reason."""

    by_reason: dict[str, Values]
    requests: Values


@dataclass(frozen=True, slots=True)
class SourceFreshness:
    """How old the last word of a source is."""

    source: str
    """Router id, `kv-events`, `polls`."""
    kind: str
    """`router`, `kv-events` or `polls`."""
    last_at: datetime | None
    age_s: float | None
    stale: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class RouterRow:
    """A router's last word about itself."""

    router: str
    last_at: datetime
    age_s: float
    snapshot_version: int
    snapshot_age_s: float
    inflight: int
    index_blocks: int
    index_bytes: int
    stream_dropped: int
    worker_states: dict[str, str] = field(default_factory=dict)
    worker_outstanding: dict[str, int] = field(default_factory=dict)


HEAT_MEASURES = {
    "kv_use": "share",
    "running": "requests",
    "hit_share": "share",
    "evictions": "blocks/min",
    "requests": "requests/s",
}
"""Measures of the heat map and their units."""

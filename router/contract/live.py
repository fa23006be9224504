"""Live state of the workers, as the pollers last saw it, for the routers' choice.

A hint with an age: a router that cannot read it, or finds it old, goes on with its own ledger.
"""

from __future__ import annotations

import msgspec

LIVE_STALE_AFTER_S = 6.0
"""Three missed polls of 2 s: older figures are unknown to the choice and grey to the operator."""


class WorkerLive(msgspec.Struct, frozen=True, omit_defaults=True):
    at: float
    """Unix seconds of the scrape."""
    ok: bool = True
    running: int | None = None
    waiting: int | None = None
    kv_use: float | None = None
    """vllm:kv_cache_usage_perc, 0…1: blocks held by RUNNING requests only."""
    started_at: float | None = None
    """process_start_time_seconds: the worker's cache is empty before it."""
    prefill_tokens_per_s: float | None = None


class KvLive(msgspec.Struct, frozen=True, omit_defaults=True):
    at: float
    resident_blocks: int | None = None
    capacity_blocks: int | None = None
    evictions_per_s: float | None = None
    """Mean of removed blocks over the last 10 s. Normal for a full cache: what goes may never be wanted again."""
    restores_per_s: float | None = None
    """Mean over the last 10 s of blocks stored again within telemetry.RESTORE_WINDOW_S of their removal: evictions that
    cost a recompute, the pressure that kv_use cannot show."""
    cache_epoch_at: float | None = None
    """Unix seconds since which this cache's content is fully known to have begun empty; None = unknown."""
    state: str = "live"


encode = msgspec.json.Encoder().encode
decode_worker = msgspec.json.Decoder(WorkerLive).decode
decode_kv = msgspec.json.Decoder(KvLive).decode

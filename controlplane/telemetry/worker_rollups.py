"""Turns polls into contributions to the workers' rollups. Registered as a poll sink when the app is loaded."""

from __future__ import annotations

import time
from collections.abc import Sequence

from controlplane.fleet.deltas import per_bucket
from controlplane.fleet.poll import PollOutcome
from controlplane.telemetry.merge import Contribution, Values
from controlplane.telemetry.rollups import WORKER_TABLE, add

WHOLE_COUNTERS = ("prefix_query_tokens", "prefix_hit_tokens", "prompt_tokens", "generation_tokens", "preemptions",
                  "requests_finished", "ttft_count", "queue_count")  # fmt: skip
SECONDS_COUNTERS = ("ttft_sum_s", "queue_sum_s")
LOADED_BYTES = ("offload_load_bytes", "nixl_bytes")
LOAD_SECONDS = ("offload_load_s", "nixl_s")
"""KV that a worker loaded from its host's or a shared tier, or pulled from another worker, by connector."""


def record_polls(outcomes: Sequence[PollOutcome]) -> None:
    add(WORKER_TABLE, [contribution_of(outcome) for outcome in outcomes], now_s=time.time())


def contribution_of(outcome: PollOutcome) -> Contribution:
    """Gauges count as samples; increases only when there was a predecessor without reset. Pure."""
    values: Values = {"polls_ok": int(outcome.ok), "polls_failed": int(not outcome.ok)}
    reading = outcome.reading
    if reading is not None:
        for name in ("running", "waiting", "kv_use"):
            level = getattr(reading, name)
            if level is not None:
                values |= {f"{name}_sum": level, f"{name}_max": level, f"{name}_samples": 1}
        values |= _increase_values(outcome)
    if outcome.gpu is not None:
        values |= _gpu_values(outcome)
    return Contribution(at_s=outcome.at, dims=(outcome.target.worker_id,), values=values)


def _increase_values(outcome: PollOutcome) -> Values:
    found = outcome.increases
    if found.reset:
        return {"counter_resets": 1}
    if not found.known:
        return {}
    values: Values = {"delta_samples": 1}
    values |= {name: round(found.values[name]) for name in WHOLE_COUNTERS if name in found.values}
    values |= {name: found.values[name] for name in SECONDS_COUNTERS if name in found.values}
    for field, names in (("loaded_bytes", LOADED_BYTES), ("load_s", LOAD_SECONDS)):
        told = [found.values[name] for name in names if name in found.values]
        if told:
            values[field] = round(sum(told)) if field == "loaded_bytes" else sum(told)
    values["prompt_tokens_by_source"] = {
        name.removeprefix("source:"): round(increase)
        for name, increase in found.values.items()
        if name.startswith("source:")
    }
    values["ttft_buckets"] = per_bucket(found.values, "ttft_le:")
    values["queue_buckets"] = per_bucket(found.values, "queue_le:")
    return values


def _gpu_values(outcome: PollOutcome) -> Values:
    gpu = outcome.gpu
    assert gpu is not None
    values: Values = {}
    if gpu.utilisation is not None:
        values |= {"gpu_samples": 1, "gpu_util_sum": gpu.utilisation, "gpu_power_sum_w": gpu.power_w or 0.0}
    if gpu.memory_used_mib is not None:
        values["gpu_memory_used_max_mib"] = gpu.memory_used_mib
    if gpu.xid:
        values["xid_errors"] = 1
    return values

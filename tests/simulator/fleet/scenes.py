"""Small scenes for the fleet's tests: requests with named blocks, a small worker, views of workers at rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from simulator.fleet.engine import FleetEngine
from simulator.fleet.hardware import H100_32B, GpuProfile
from simulator.fleet.names import BlockName
from simulator.fleet.policy import WorkerView
from simulator.fleet.table import Row
from simulator.fleet.workload import BLOCK_TOKENS, Request

ROOMY = dataclasses.replace(H100_32B, kv_capacity_tokens=64 * BLOCK_TOKENS)


def request(
    number: int, blocks: Sequence[int], *, output_tokens: int = 10, tail_tokens: int = 100, affinity: int = 0
) -> Request:
    """A prompt of the named whole blocks and a tail; its answer ends inside the tail's block."""
    return Request(
        id=number,
        arrival_s=0.0,
        prompt_tokens=len(blocks) * BLOCK_TOKENS + tail_tokens,
        output_tokens=output_tokens,
        chain=[BlockName(block) for block in blocks],
        text_hashes=[block * 4 + part for block in blocks for part in range(4)],
        affinity=affinity,
    )


def views(count: int, profile: GpuProfile = ROOMY) -> list[WorkerView]:
    return [WorkerView(index, FleetEngine(profile)) for index in range(count)]


def warm(view: WorkerView, blocks: Sequence[int]) -> None:
    """Let the worker serve a prompt, so that it caches its blocks."""
    view.engine.add(request(10_000 + view.index, blocks), 0.0)
    drain(view.engine)


def drain(engine: FleetEngine) -> float:
    """Run the engine until it is idle; when that was."""
    now = 0.0
    while engine.due_s != float("inf"):
        now = engine.due_s
        engine.finish_step(now)
    return now


def row(**figures: Any) -> Row:  # Any: fields of several types
    """A row of a sweep's table."""
    usual: dict[str, Any] = {
        "trace": "kb8k", "workers": 4, "load": 0.6, "policy": "tidemark", "seeds": 1, "hit_token_share": 0.9,
        "ttft_mean_s": 0.5, "ttft_p50_s": 0.2, "ttft_p95_s": 2.0, "goodput_per_s": 10.0, "goodput_spread_per_s": 0.0,
        "goodput_of_oracle": 1.0, "good_share": 0.9, "prefill_max_over_mean": 1.1, "evicted_blocks_per_min": 20.0,
        "spills": 0, "preemptions": 0, "unfinished": 0, "busy_share": 0.5,
    }  # fmt: skip
    return Row(**usual | figures)

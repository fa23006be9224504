"""The demo's simulated workers and traffic player, from the simulator's own profile."""

from __future__ import annotations

from pathlib import Path

from simulator.profiles import DEMO, WorkerSpec, demo_traffic_argv
from simulator.profiles import demo_workers as profile_workers

MODEL = DEMO.model
BLOCK_SIZE = DEMO.block_size_tokens
WORKERS = DEMO.workers


def demo_workers(first_port: int) -> list[WorkerSpec]:
    return profile_workers(first_port=first_port)


def worker_addresses(worker: WorkerSpec) -> dict[str, str]:
    """Field of `fleet.Worker` → address."""
    return {
        "url": worker.url,
        "kv_events_endpoint": worker.events_endpoint,
        "kv_replay_endpoint": worker.replay_endpoint,
        "dcgm_url": worker.dcgm_url,
    }


def traffic_argv(*, keys_file: Path, router_url: str, trace: str, duration_s: float | None, report: Path) -> list[str]:
    return demo_traffic_argv(keys_file, router_url, trace, duration_s, report)

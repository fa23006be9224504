"""Routing quality through real sockets: what share of prompts workers find in their caches, and how even their work is.

Four mock workers with least-recently-used prefix caches serve the workload of `benchmarks.workload`, 10 µs of prefill a
token and 20 ms of decoding; each proxy starts empty before empty caches. Caches together hold everything (`whole`) or
38 % of it. Hits are compared with the most that one cache of the same size could have hit.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.ports import BACKENDS, proxy_ports
from benchmarks.proxy import OURS, failures, run_slice, start_and_wait
from benchmarks.proxybench.kit import HOME, BenchError, Worker, ask_backend, build_kit, start_backend, wait_for_answer
from benchmarks.proxybench.ours import Fleet, start_ours
from benchmarks.proxybench.peers import Start, start_sglang_router, start_vllm_router
from benchmarks.report import BEST_PEER, Bar, Report, median
from benchmarks.workload import distinct_blocks, hit_bound, make_workload, write_workload

CACHE_SHARES = {"whole": 1.0, "38 %": 0.38}
"""Of the workload's distinct blocks, in all workers' caches together."""
CONNECTIONS = (32, 128)
TOKENS_A_BLOCK = 16
PREFILL_US_A_TOKEN, DECODE_US = 10, 20_000
HITS_BELOW_BOUND_MAX = 0.5
"""Percentage points."""
PREFILL_MAX_TO_MEAN = 1.05

PEERS: dict[str, Start] = {
    "sglang-router cache_aware": partial(start_sglang_router, policy="cache_aware"),
    "vllm-router cache_aware": partial(start_vllm_router, policy="cache_aware"),
}


@dataclass(frozen=True)
class Found:
    hits_percent: float
    """Of characters."""
    prefill_max_to_mean: float
    """Computed characters of the busiest worker against the mean."""
    mean_ms: float
    p99_ms: float
    failed: int


def measure(report: Report) -> None:
    build_kit()
    requests = make_workload()
    file = HOME / "run" / "quality-workload.bin"
    write_workload(requests, file)
    for title, share in CACHE_SHARES.items():
        # A little is lost where four caches do not fill evenly: "whole" is what the workers hold in all, no more.
        blocks_a_worker = round(distinct_blocks(requests) * share / len(BACKENDS))
        found = _runs(report, file, blocks_a_worker)
        for connections in CONNECTIONS:
            cached = blocks_a_worker * len(BACKENDS)
            bound = 100 * hit_bound(requests, cache_blocks=cached, connections=connections)
            _say(report, f"caches {title}, {connections} connections", bound, found, connections)


def _runs(report: Report, file: Path, blocks_a_worker: int) -> dict[tuple[str, int], list[Found]]:
    fleet = Fleet(kv_capacity_tokens=blocks_a_worker * TOKENS_A_BLOCK)
    starts: dict[str, Start] = {OURS: partial(start_ours, fleet=fleet), **PEERS}
    found: dict[tuple[str, int], list[Found]] = {}
    with ExitStack() as stack:
        worker = Worker(blocks_a_worker, PREFILL_US_A_TOKEN, DECODE_US)
        stack.callback(start_backend(list(BACKENDS), worker).stop)
        if not wait_for_answer(BACKENDS[0], key=None):
            raise BenchError("the mock workers do not answer")
        for _ in range(report.rounds):
            for connections in CONNECTIONS:
                for (name, start), port in zip(starts.items(), proxy_ports(), strict=False):
                    run = _run(report, name, start, port, connections, file)
                    if run is not None:
                        found.setdefault((name, connections), []).append(run)
    return found


def _run(report: Report, name: str, start: Start, port: int, connections: int, file: Path) -> Found | None:
    with ExitStack() as stack:
        peer = start_and_wait(report, name, start, port, BACKENDS, stack)
        if peer is None:
            return None
        ask_backend(BACKENDS[0], "/reset")
        figures = run_slice(peer, "-c", str(connections), "-f", str(file))
        return _found(figures, ask_backend(BACKENDS[0], "/stats"))


def _found(figures: dict[str, Any], stats: list[dict[str, Any]]) -> Found:  # Any: JSON of generator and workers
    computed = [worker["chars"] - worker["hit"] for worker in stats]
    return Found(
        hits_percent=100 * sum(worker["hit"] for worker in stats) / sum(worker["chars"] for worker in stats),
        prefill_max_to_mean=max(computed) / (sum(computed) / len(computed)),
        mean_ms=figures["mean_us"] / 1000,
        p99_ms=figures["p99_us"] / 1000,
        failed=failures([figures]),
    )


def _say(report: Report, title: str, bound: float, found: dict[tuple[str, int], list[Found]], connections: int) -> None:
    failed = sum(run.failed for run in found[OURS, connections])
    why = f"{failed} requests failed" if failed else ""

    def add(figure: str, unit: str, field: str, *bars: Bar) -> None:
        values = {
            name: median(getattr(run, field) for run in runs) for (name, at), runs in found.items() if at == connections
        }
        ours = values.pop(OURS)
        report.add(f"{figure}, {title}", unit, ours, peers=values, bars=bars, why=why, failed=failed > 0)

    note = f" (bound {bound:.2f})"
    add("hits", "%", "hits_percent", Bar(bound - HITS_BELOW_BOUND_MAX, at_least=True, note=note))
    add("prefill, busiest ÷ mean", "", "prefill_max_to_mean", Bar(PREFILL_MAX_TO_MEAN))
    add("mean latency", "ms", "mean_ms", Bar(1.0, BEST_PEER))
    add("p99 latency", "ms", "p99_ms")

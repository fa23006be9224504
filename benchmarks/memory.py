"""Memory and CPU while 100,000 distinct 4 KB prompts go through a router process: what it remembers of each.

On a shared machine a CPU microsecond is worth more in one minute than in the next, so nginx serves the same prompts in
turn with the router, and the router's CPU is compared in multiples of nginx's.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from benchmarks.ports import BACKENDS, proxy_ports
from benchmarks.proxy import OURS, Run, run_slice, spoilt, start_and_wait
from benchmarks.proxybench.kit import BenchError, Peer, build_kit, start_backend, wait_for_answer
from benchmarks.proxybench.ours import start_ours
from benchmarks.proxybench.peers import Start, start_nginx, start_sglang_router, start_vllm_router
from benchmarks.report import Bar, Report, median

PROMPT_CHARS = 4096
SLICE_PROMPTS = 10_000
SLICES = 10
PEER_SLICES = 2
"""Enough to know bytes a prompt."""
WARM_UP_PROMPTS = 2_000
"""Connections, code paths and the allocator's first pages are no memory of prompts."""
ENDS = 3
"""Slices at the beginning and at the end whose CPU is compared."""
BYTES_A_PROMPT_MAX = 1024
CPU_GROWTH_MAX = 1.15
"""Last slices ÷ first ones: flat but for the clock's ticks, 3 % of nginx's CPU in a slice, and the noise left."""

PEERS: dict[str, Start] = {
    "sglang-router cache_aware": partial(start_sglang_router, policy="cache_aware"),
    "vllm-router cache_aware": partial(start_vllm_router, policy="cache_aware"),
}


def measure(report: Report) -> None:
    build_kit()
    found: dict[str, float | None] = {}
    with ExitStack() as stack:
        stack.callback(start_backend(list(BACKENDS)).stop)
        if not wait_for_answer(BACKENDS[0], key=None):
            raise BenchError("the mock workers do not answer")
        control_port, *ports = proxy_ports()
        control = start_and_wait(report, "nginx", start_nginx, control_port, BACKENDS, stack)
        starts: dict[str, Start] = {OURS: start_ours, **PEERS}
        for (name, start), port in zip(starts.items(), ports, strict=False):
            with ExitStack() as alone:
                peer = start_and_wait(report, name, start, port, BACKENDS, alone)
                if peer is not None:
                    beside = control if name == OURS else None
                    runs, controls, grown = _grow(peer, SLICES if name == OURS else PEER_SLICES, beside)
                    why = spoilt(runs)
                    found[name] = None if why else grown
                    if name == OURS:
                        _say_cpu(report, runs, controls, why)
    ours = found.pop(OURS)
    bars = [Bar(BYTES_A_PROMPT_MAX)]
    report.add("memory per distinct 4 KB prompt", "B", ours, peers=found, bars=bars, failed=ours is None)


def _grow(peer: Peer, slices: int, control: Peer | None) -> tuple[list[Run], list[Run], float]:
    """Slices of prompts that nobody sent before, the control's, and the bytes that RSS grew by for each prompt."""
    run_slice(peer, "-c", "32", "-n", str(WARM_UP_PROMPTS), "-U", str(PROMPT_CHARS), "-S", "1")
    before_mib = peer.running.rss_mib()
    runs, controls = [], []
    for at in range(1, slices + 1):
        load = ("-c", "32", "-n", str(SLICE_PROMPTS), "-U", str(PROMPT_CHARS), "-S", str(at * 1_000_000 + 1))
        runs.append(run_slice(peer, *load))
        if control is not None:
            controls.append(run_slice(control, *load))
    grown_mib = peer.running.rss_mib() - before_mib
    return runs, controls, grown_mib * 2**20 / (slices * SLICE_PROMPTS)


def _say_cpu(report: Report, runs: list[Run], controls: list[Run], why: str) -> None:
    ours_us, control_us = _cpu_us(runs), _cpu_us(controls)
    relative = [ours / control for ours, control in zip(ours_us, control_us, strict=True)] if controls else ours_us
    ratio = median(relative[-ENDS:]) / median(relative[:ENDS])
    name = "CPU of the last ÷ the first of 100k distinct prompts"
    report.add(name, "×", ratio, bars=[Bar(CPU_GROWTH_MAX)], why=why, failed=bool(why))
    report.notes["cpu_us_by_10k_distinct_prompts"] = {"tidemark": ours_us, "nginx": control_us}


def _cpu_us(runs: list[Run]) -> list[float]:
    return [round(1e6 * run["cpu_s"] / run["n"], 1) for run in runs]

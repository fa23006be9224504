"""CPU, throughput and added latency of the router beside other proxies, interleaved on one machine.

Each proxy runs alone on core 0 while it is measured, load generator and mock workers on core 1. CPU per request comes
from the process tree's accounting and is the figure to trust; requests per second move with the machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from benchmarks.ports import BACKENDS, proxy_ports
from benchmarks.proxybench.kit import (
    BenchError,
    Peer,
    build_kit,
    generate_load,
    start_backend,
    wait_for_answer,
)
from benchmarks.proxybench.ours import ask_ours, start_ours
from benchmarks.proxybench.peers import Start, start_envoy, start_nginx, start_sglang_router, start_vllm_router
from benchmarks.report import Bar, Report, median

OURS = "tidemark"
VLLM, SGLANG = "vllm-router round_robin", "sglang-router cache_aware"
PEERS: dict[str, Start] = {
    "nginx": start_nginx,
    VLLM: start_vllm_router,
    SGLANG: start_sglang_router,
    "envoy": start_envoy,
}
DIRECT = "direct"
"""The workers themselves: what a proxy's latency is added to."""
SLICE_S = 1.0
PACED_SLICE_S = 2.2
"""Two streams of each connection."""


@dataclass(frozen=True)
class Case:
    load: tuple[str, ...]
    """Of the generator: connections, groups of prompts, shared and unique characters, chunks and their pace in µs."""
    slice_s: float = SLICE_S


CASES = {
    "1 KB": Case(("-c", "32", "-U", "900")),
    "64 KB": Case(("-c", "32", "-P", "64000", "-U", "200")),
    "64 KB, shared prefix": Case(("-c", "32", "-G", "50", "-P", "60000", "-U", "4000")),
    "1 connection": Case(("-c", "1", "-U", "900")),
    "paced stream": Case(("-c", "64", "-U", "900", "-s", "200", "5000"), PACED_SLICE_S),
}
ERRORS_SHARE_MAX = 0.001
"""More failed answers than this and a figure says nothing about served requests."""

Run = dict[str, Any]
"""Any: the load generator's JSON, with the CPU seconds of the proxy."""
_Samples = dict[tuple[str, str], list[Run]]


def measure(report: Report) -> None:
    build_kit()
    with ExitStack() as stack:
        backends = list(BACKENDS)
        stack.callback(start_backend(backends).stop)
        if not wait_for_answer(backends[0], key=None):
            raise BenchError("the mock workers do not answer")
        peers = _start(report, backends, stack)
        samples = _rounds(peers, backends[0], report.rounds)
        report.notes["rss_mib"] = {name: round(peer.running.rss_mib(), 1) for name, peer in peers.items()}
        report.notes["router_code_measured"] = ask_ours(peers[OURS], "/readyz")["code"]
    _say(report, samples, list(peers))


def _start(report: Report, backends: list[int], stack: ExitStack) -> dict[str, Peer]:
    starts: dict[str, Start] = {OURS: start_ours, **PEERS}
    running: dict[str, Peer] = {}
    for (name, start), port in zip(starts.items(), proxy_ports(), strict=False):
        peer = start_and_wait(report, name, start, port, backends, stack)
        if peer is not None:
            generate_load(peer.port, "-c", "16", "-d", "1", "-U", "900", key=peer.key)
            running[name] = peer
    return running


def start_and_wait(
    report: Report, name: str, start: Start, port: int, backends: Sequence[int], stack: ExitStack
) -> Peer | None:
    """The peer once it answers; a foreign one that cannot be had is told to the report. Stopped with the stack."""
    started = start(port, backends)
    if isinstance(started, str):
        report.skipped[name] = started
        return None
    stack.callback(started.running.stop)
    if wait_for_answer(started.port, key=started.key):
        if started.version:
            report.versions[name.split()[0]] = started.version
        return started
    if name == OURS:
        raise BenchError(f"the router does not answer; see {started.running.log}")
    report.skipped[name] = f"does not answer; see {started.running.log}"
    return None


def _rounds(peers: Mapping[str, Peer], direct: int, rounds: int) -> _Samples:
    samples: _Samples = {}
    for turn in range(rounds):
        for name, case in CASES.items():
            slice_s = ("-d", str(case.slice_s))
            samples.setdefault((DIRECT, name), []).append(generate_load(direct, *slice_s, *case.load))
            for at, (peer_name, peer) in enumerate(peers.items()):
                # Prompts of their own for each slice: nobody profits from what another slice has sent.
                seed = ("-S", str((turn * 100 + at) * 1_000_000 + 1))
                samples.setdefault((peer_name, name), []).append(run_slice(peer, *slice_s, *seed, *case.load))
    return samples


def run_slice(peer: Peer, *options: str) -> Run:
    """One slice of load through a proxy, with the CPU seconds that it took."""
    cpu_before_s = peer.running.cpu_s()
    figures = generate_load(peer.port, *options, key=peer.key)
    figures["cpu_s"] = peer.running.cpu_s() - cpu_before_s
    return figures


def failures(runs: list[Run]) -> int:
    """Answers other than 200, and requests without one."""
    return sum(run["errs"] + sum(n for code, n in run["codes"].items() if code != "200") for run in runs)


def spoilt(runs: list[Run]) -> str:
    """Why the runs say nothing, or ""."""
    count = sum(run["n"] for run in runs)
    if not count:
        return "no request was answered"
    failed = failures(runs)
    return f"{failed} of {count} requests failed" if failed > ERRORS_SHARE_MAX * count else ""


def _say(report: Report, samples: _Samples, names: list[str]) -> None:
    def add(title: str, case: str, unit: str, figure: Any, *bars: Bar) -> None:
        """`figure`: (runs of one proxy, runs without a proxy) → number."""
        found: dict[str, float | None] = {}
        reasons = []
        for name in names:
            runs = samples[name, case]
            why = spoilt(runs)
            found[name] = None if why else figure(runs, samples[DIRECT, case])
            reasons += [f"{name}: {why}"] * bool(why)
        ours = found.pop(OURS)
        report.add(title, unit, ours, peers=found, bars=bars, why="; ".join(reasons), failed=ours is None)

    add("CPU per request, 1 KB", "1 KB", "µs", _cpu_us, Bar(0.75, VLLM), Bar(0.4, SGLANG))
    add("CPU per request, 64 KB", "64 KB", "µs", _cpu_us)
    add(
        "CPU per request, 64 KB, shared prefix", "64 KB, shared prefix", "µs", _cpu_us,
        Bar(0.8, VLLM), Bar(0.45, SGLANG),
    )  # fmt: skip
    add("CPU per request, 1 KB, 1 connection", "1 connection", "µs", _cpu_us)
    add("added latency p50, 1 connection", "1 connection", "µs", _added_us, Bar(0.9, VLLM))
    add("CPU per paced streamed chunk", "paced stream", "µs", _chunk_us, Bar(1.0, VLLM))
    add("relay p99 of a paced chunk", "paced stream", "ms", _relay_ms, Bar(5.0))
    add("requests per second, 1 KB, 32 connections", "1 KB", "/s", _rps)


def _cpu_us(runs: list[Run], direct: list[Run]) -> float:
    return median(1e6 * run["cpu_s"] / run["n"] for run in runs)


def _chunk_us(runs: list[Run], direct: list[Run]) -> float:
    return median(1e6 * run["cpu_s"] / run["events"] for run in runs)


def _relay_ms(runs: list[Run], direct: list[Run]) -> float:
    return median(run["relay_p99_us"] / 1000 for run in runs)


def _added_us(runs: list[Run], direct: list[Run]) -> float:
    return median(run["p50_us"] - bare["p50_us"] for run, bare in zip(runs, direct, strict=True))


def _rps(runs: list[Run], direct: list[Run]) -> float:
    return median(run["rps"] for run in runs)

"""CPU, throughput and added latency of the router beside nginx and vllm-router, interleaved on one machine.

Each proxy runs alone on core 0 while it is measured, load generator and mock workers on core 1. CPU per request comes
from the process tree's accounting and is the figure to trust; requests per second move with the machine. Run it on an
otherwise quiet machine with at least two cores.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.proxybench.kit import BenchError, Pinned, build_kit, generate_load, start_backend, wait_for_answer
from benchmarks.proxybench.peers import Peer, Start, start_nginx, start_ours, start_vllm_router

OUT = Path(__file__).parent / "out" / "latest.json"
PORT_FIRST = 28100
BACKENDS = 4
CASES: dict[str, tuple[str, ...]] = {
    "1k": ("-c", "32", "-U", "900"),
    "64k": ("-c", "32", "-P", "64000", "-U", "200"),
    "1k_one_connection": ("-c", "1", "-U", "900"),
    "stream_200_chunks": ("-c", "64", "-U", "900", "-s", "200", "0"),
}
"""Load generator options: connections, shared and unique prompt characters, streamed chunks and their pace."""
PEERS: dict[str, Start] = {
    "tidemark": start_ours,
    "tidemark_round_robin": functools.partial(start_ours, routing="round_robin"),
    "nginx": start_nginx,
    "vllm-router": start_vllm_router,
}
MARK_RATIO_MAX = 1.0
"""First mark: ours ÷ vllm-router, CPU per request at 1 KB."""


def main() -> int:
    options = _options()
    try:
        build_kit()
        report = _measure_all(options.peers, options.rounds, options.seconds)
    except BenchError as error:
        print(f"benchmarks.proxy: {error}", file=sys.stderr)
        return 1
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report) if options.json else _table(report))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.proxy", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one measured slice")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    return parser.parse_args()


def _measure_all(names: list[str], rounds: int, seconds: float) -> dict[str, Any]:
    backends = [PORT_FIRST + i for i in range(BACKENDS)]
    running: list[Pinned] = [start_backend(backends)]
    skipped: dict[str, str] = {}
    peers: dict[str, Peer] = {}
    try:
        if not wait_for_answer(backends[0], key=None):
            raise BenchError("the mock workers do not answer")
        for i, name in enumerate(names):
            started = PEERS[name](PORT_FIRST + 50 + i, backends)
            if isinstance(started, str):
                skipped[name] = started
                continue
            running.append(started.running)
            if wait_for_answer(started.port, key=started.key):
                peers[name] = started
                generate_load(started.port, "-c", "16", "-d", "1", "-U", "900", key=started.key)
            else:
                skipped[name] = "does not answer"
        samples = _rounds(peers, backends[0], rounds, seconds)
        rss = {name: round(peer.running.rss_mib(), 1) for name, peer in peers.items()}
    finally:
        for pinned in running:
            pinned.stop()
    return _report(samples, rss, skipped, rounds)


def _rounds(
    peers: dict[str, Peer], direct: int, rounds: int, seconds: float
) -> dict[tuple[str, str], list[dict[str, Any]]]:
    samples: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for turn in range(rounds):
        for case, load in CASES.items():
            slice_s = ("-d", str(seconds))
            samples.setdefault(("direct", case), []).append(generate_load(direct, *slice_s, *load))
            for i, (name, peer) in enumerate(peers.items()):
                # Prompts of their own for each slice: nobody profits from what another slice has sent.
                seed = ("-S", str((turn * 100 + i) * 1_000_000 + 1))
                cpu_before_s = peer.running.cpu_s()
                figures = generate_load(peer.port, *slice_s, *seed, *load, key=peer.key)
                figures["cpu_s"] = peer.running.cpu_s() - cpu_before_s
                samples.setdefault((name, case), []).append(figures)
    return samples


def _report(
    samples: dict[tuple[str, str], list[dict[str, Any]]], rss: dict[str, float], skipped: dict[str, str], rounds: int
) -> dict[str, Any]:
    rows = [
        _row(peer, case, runs, samples[("direct", case)]) for (peer, case), runs in samples.items() if peer != "direct"
    ]
    by_key = {(row["peer"], row["case"]): row for row in rows}
    ratios = {
        f"{peer} {case}": round(by_key["tidemark", case]["cpu_us"] / row["cpu_us"], 3)
        for (peer, case), row in by_key.items()
        if ("tidemark", case) in by_key and not peer.startswith("tidemark") and row["cpu_us"]
    }
    mark = ratios.get("vllm-router 1k")
    return {
        "at": time.time(),
        "rounds": rounds,
        "load_average": os.getloadavg()[0],
        "rows": rows,
        "cpu_ratio_ours_to": ratios,
        "mark": {"ratio_max": MARK_RATIO_MAX, "ratio": mark, "met": None if mark is None else mark <= MARK_RATIO_MAX},
        "rss_mib": rss,
        "skipped": skipped,
    }


def _row(peer: str, case: str, runs: list[dict[str, Any]], direct: list[dict[str, Any]]) -> dict[str, Any]:
    requests = sum(run["n"] for run in runs)
    events = sum(run["events"] for run in runs)
    cpu_s = sum(run["cpu_s"] for run in runs)
    codes: dict[str, int] = {}
    for run in runs:
        for code, count in run["codes"].items():
            codes[code] = codes.get(code, 0) + count
    return {
        "peer": peer,
        "case": case,
        "cpu_us": round(1e6 * cpu_s / requests, 1) if requests else None,
        "cpu_us_best": round(min(1e6 * run["cpu_s"] / run["n"] for run in runs if run["n"]), 1) if requests else None,
        "cpu_us_a_chunk": round(1e6 * cpu_s / events, 2) if events else None,
        "rps": round(statistics.median(run["rps"] for run in runs)),
        "p50_us": statistics.median(run["p50_us"] for run in runs),
        "p99_us": statistics.median(run["p99_us"] for run in runs),
        "added_p50_us": round(_median(runs, "p50_us") - _median(direct, "p50_us"), 1),
        "errors": sum(run["errs"] for run in runs),
        "codes": codes,
    }


def _median(runs: list[dict[str, Any]], name: str) -> float:
    return float(statistics.median(run[name] for run in runs))


def _table(report: dict[str, Any]) -> str:
    lines = [f"{'peer':<22}{'case':<20}{'CPU µs':>9}{'best':>9}{'a chunk':>9}{'rps':>9}{'added p50 µs':>14}  codes"]
    for row in sorted(report["rows"], key=lambda row: (row["case"], row["cpu_us"] or 0)):
        chunk = row["cpu_us_a_chunk"] if row["cpu_us_a_chunk"] is not None else "-"
        lines.append(
            f"{row['peer']:<22}{row['case']:<20}{row['cpu_us'] or '-':>9}{row['cpu_us_best'] or '-':>9}{chunk:>9}"
            f"{row['rps']:>9}{row['added_p50_us']:>14}  {row['codes']}"
        )
    lines += [f"ours ÷ {name}: {ratio}" for name, ratio in report["cpu_ratio_ours_to"].items()]
    lines += [f"skipped {name}: {why}" for name, why in report["skipped"].items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

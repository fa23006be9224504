"""What-if over a day of recorded traffic: seconds until 100,000 requests are answered, and how often it told progress.

    python -m benchmarks.what_if_scale [--json] [--requests 100000] [--scenarios 2] [--seeds 1]

The recording is made here: conversations of several turns behind heads that many share, as a pool of workers would have
recorded them. The question is the fleet as it is and changed ones; its process is the one that the dashboard starts.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from benchmarks.machine import ROOT
from router.contract.recorded import TEXT_BLOCK_BYTES, RecordedRequest, RecordingHead, anchor_positions

REQUESTS, WORKERS = 100_000, 8
DAY_S = 86_400.0
HEADS = 64
HEAD_TOKENS = (1_000, 6_000)
TURNS_MEAN = 5
TURN_TOKENS, ANSWER_TOKENS = (60, 700), (50, 400)
THINK_S = 25.0
BYTES_PER_TOKEN = 4
SECONDS_MAX = 60.0
PROGRESS_MIN = 100
"""Times that it must have told of progress: a bar that moves each second or more often."""
TIMEOUT_S = 900
CHANGES: tuple[dict[str, object], ...] = (
    {"name": "as it is"},
    {"name": "two fewer", "workers": WORKERS - 2},
    {"name": "half the memory", "kv_capacity_factor": 0.5},
    {"name": "round robin", "policy": "round_robin"},
)


@dataclass(frozen=True, slots=True)
class Figures:
    requests: int
    scenarios: int
    seeds: int
    seconds: float
    cpu_s: float
    progress: int
    """Lines told before the answer."""
    peak_gib: float
    load_average: float


def write_recording(path: Path, requests: int, *, seed: int = 1) -> None:
    """By time, as a router ships it."""
    rows = sorted(_requests(requests, random.Random(seed)), key=lambda row: row.at)
    with gzip.open(path, "wb", compresslevel=1) as out:
        for line in (RecordingHead(since=0.0, until=DAY_S, pool="demo"), *rows):
            out.write(msgspec.json.encode(line) + b"\n")


def measure(requests: int, scenarios: int, seeds: int) -> Figures:
    """Raises subprocess.SubprocessError where it gives no answer."""
    question = {"workers": WORKERS, "scenarios": CHANGES[:scenarios], "seeds": list(range(1, seeds + 1))}
    with tempfile.TemporaryDirectory(prefix="tidemark-what-if-") as name:
        trace = Path(name) / "day.jsonl.gz"
        write_recording(trace, requests)
        command = [sys.executable, "-m", "simulator", "what-if", "--trace", str(trace)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began_s = time.monotonic()
        asked = json.dumps(question).encode()
        done = subprocess.run(command, cwd=ROOT, input=asked, stdout=subprocess.PIPE, timeout=TIMEOUT_S, check=True)
        seconds = time.monotonic() - began_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    if "answer" not in lines[-1] or len(lines[-1]["answer"]["scenarios"]) != scenarios:
        raise subprocess.SubprocessError("no answer to every scenario")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    peak_gib = after.ru_maxrss / 2**20
    return Figures(requests, scenarios, seeds, seconds, cpu_s, len(lines) - 1, peak_gib, os.getloadavg()[0])


def measures(found: Figures) -> list[dict[str, object]]:
    """As `benchmarks/alone.py` takes them."""
    name = f"what-if of {found.requests:,} requests, {found.scenarios} scenarios"
    return [
        {"name": name, "unit": "s", "ours": round(found.seconds, 1), "bar": SECONDS_MAX},
        {"name": f"{name}, progress", "unit": "words", "ours": found.progress, "bar": PROGRESS_MIN, "at_least": True},
        {"name": f"{name}, most memory", "unit": "GiB", "ours": round(found.peak_gib, 2)},
    ]


def _requests(count: int, rng: random.Random) -> Iterator[RecordedRequest]:
    heads = [rng.randint(*HEAD_TOKENS) for _ in range(HEADS)]
    weights = [1 / (rank + 1) for rank in range(HEADS)]
    made = session = 0
    while made < count:
        session += 1
        (head,) = rng.choices(range(HEADS), weights)
        prompt_tokens, at = heads[head], rng.random() * DAY_S
        head_blocks = prompt_tokens * BYTES_PER_TOKEN // TEXT_BLOCK_BYTES
        for _ in range(min(count - made, 1 + int(rng.expovariate(1 / TURNS_MEAN)))):
            prompt_tokens += rng.randint(*TURN_TOKENS)
            output_tokens = rng.randint(*ANSWER_TOKENS)
            text_bytes = prompt_tokens * BYTES_PER_TOKEN
            positions = anchor_positions(text_bytes // TEXT_BLOCK_BYTES)
            yield RecordedRequest(
                at=at, tenant=f"t{head % 8}", namespace=f"t{head % 8}/chat", pool="demo", model="m", worker="demo/w1",
                prompt_tokens=prompt_tokens, output_tokens=output_tokens, cached_tokens=head_blocks * 128,
                ttft_ms=80.0, duration_ms=1_500.0, text_bytes=text_bytes,
                anchors=b"".join(_hash(f"h{head}" if at_ <= head_blocks else f"s{session}", at_) for at_ in positions),
                unit=_hash(f"s{session}", 0), head_blocks=head_blocks,
            )  # fmt: skip
            made += 1
            prompt_tokens += output_tokens
            at += 2.0 + rng.expovariate(1 / THINK_S)


def _hash(of: str, position: int) -> bytes:
    return hashlib.blake2b(f"{of} {position}".encode(), digest_size=8).digest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--scenarios", type=int, default=2, choices=range(1, len(CHANGES) + 1))
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    found = measure(options.requests, options.scenarios, options.seeds)
    if options.json:
        print(json.dumps({"measures": measures(found), "figures": asdict(found)}, indent=1))
    else:
        print(
            f"{found.requests:,} requests, {found.scenarios} scenarios, {found.seeds} seeds: {found.seconds:.1f} s,"
            f" {found.cpu_s:.1f} s of CPU, progress told {found.progress} times, {found.peak_gib:.2f} GiB"
            f" (load average {found.load_average:.1f})"
        )
    return 0 if found.seconds <= SECONDS_MAX and found.progress >= PROGRESS_MIN else 1


if __name__ == "__main__":
    sys.exit(main())

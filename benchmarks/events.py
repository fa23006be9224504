"""KV-event ingestion: blocks a second of decode + apply, bytes a block, memory under churn, cost of a match.

    python -m benchmarks.events [--json] [--churn-blocks N] [--recorded FILE]

Batches are as vLLM encodes them: stored events of one engine step with their token ids, removals of one block each.
Time is CPU time of the thread (`time.thread_time`), so other processes disturb it less. FILE is a recording of a
real worker's batches (gzip of one JSON object a line: `seq`, `batch`).
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import statistics
import time
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from router.contract.ids import WorkerId
from router.core.exact.block_index import BlockIndex, Holder, Tier
from router.core.exact.event_stream import EventStream

WORKERS = 64
INDEX_BYTES = 1 << 30
RESIDENT_BLOCKS = 500_000
"""Held by the fleet while blocks churn: 64 workers of 125k tokens."""
CHAIN_BLOCKS = 1000
"""16k tokens of 16-token blocks."""
VOCABULARY = 128_000
RECORDED_ROUNDS = 20
PARTS = ("memory", "rates", "match", "steps")
RECORDED = Path(__file__).parent.parent / "tests" / "fixtures" / "vllm" / "kv_events_head.jsonl.gz"
"""The beginning of a real worker's life: every field, token ids among them."""


@dataclass(frozen=True)
class Rate:
    name: str
    blocks: int
    batches: int
    blocks_per_s: float
    us_per_batch: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--parts", default=",".join(PARTS), help="of " + ",".join(PARTS))
    parser.add_argument("--churn-blocks", type=int, default=5_000_000, help="blocks stored while memory is watched")
    parser.add_argument("--recorded", type=Path, default=RECORDED, help="a recording of a real worker's batches")
    arguments = parser.parse_args()
    parts = arguments.parts.split(",")
    # First, while the process has no freed memory that would hide growth.
    result: dict[str, Any] = {"memory": measure_memory(arguments.churn_blocks)} if "memory" in parts else {}
    if "rates" in parts:
        result["rates"] = [asdict(rate) for rate in measure_rates(arguments.recorded)]
    if "match" in parts:
        result["match"] = measure_matches()
    if "steps" in parts:
        result["step_ms_max"] = measure_steps()
    print(json.dumps(result, indent=1) if arguments.json else table(result))


def measure_rates(recorded: Path) -> list[Rate]:
    return [
        measure("prefill 512 × 16 tokens, empty cache", blocks=512, block_size=16, evict=False),
        measure("prefill 512 × 16 tokens, full cache", blocks=512, block_size=16, evict=True),
        measure("prefill 64 × 16 tokens, full cache", blocks=64, block_size=16, evict=True),
        measure("prefill 64 × 128 tokens, full cache", blocks=64, block_size=128, evict=True),
        measure("decode 32 requests, 1 × 16 each, full cache", blocks=32, block_size=16, evict=True, events=32),
        measure_recorded(recorded),
    ]


def measure(name: str, *, blocks: int, block_size: int, evict: bool, events: int = 1) -> Rate:
    """A worker computes `blocks` a step; with a full cache it evicts as many."""
    dice = random.Random(5)
    batches = list(_batches(dice, blocks=blocks, block_size=block_size, evict=evict, events=events))
    stream = _stream(BlockIndex(bytes_max=INDEX_BYTES))
    seconds = _feed(stream, batches)
    total = stream.counts.stored + stream.counts.removed
    assert stream.exact and stream.counts.removed_unknown == 0
    return Rate(name, total, len(batches), total / seconds, seconds / len(batches) * 1e6)


def measure_recorded(path: Path) -> Rate:
    """The recorded lives of a worker, over and over."""
    messages = _recorded(path)
    seconds, blocks = 0.0, 0
    for _ in range(RECORDED_ROUNDS):
        stream = _stream(BlockIndex(bytes_max=INDEX_BYTES))
        started = time.thread_time()
        for seq, payload in messages:
            stream.receive(seq, payload, now=0.0)
            while stream.step():
                pass
        seconds += time.thread_time() - started
        blocks += stream.counts.stored + stream.counts.removed
        assert stream.exact and not stream.counts.refused_events
    count = len(messages) * RECORDED_ROUNDS
    return Rate("recorded from a real worker", blocks, count, blocks / seconds, seconds / count * 1e6)


def measure_memory(churn_blocks: int) -> dict[str, float]:
    """Resident memory of the process while blocks come and go; growth is measured over the last nine tenths, so the
    first tenth should be RESIDENT_BLOCKS: dicts grow once to what churn needs."""
    dice = random.Random(7)
    index = BlockIndex(bytes_max=INDEX_BYTES)
    holders = [Holder(WorkerId(f"p/w{at}")) for at in range(WORKERS)]
    for holder in holders:
        index.add(holder)
    before = _rss_bytes()
    held: deque[tuple[Holder, list[int]]] = deque()
    while index.blocks < RESIDENT_BLOCKS:
        held.append((dice.choice(holders), [dice.getrandbits(64) for _ in range(500)]))
        index.store(held[-1][0], Tier.DEVICE, held[-1][1])
    # What `held` itself takes is known: 48 bytes an integer that the index shares, 8 of the list.
    filled = _rss_bytes()
    bytes_per_block = (filled - before) / index.blocks - 8
    samples: list[int] = []
    seconds, stored = 0.0, 0
    while stored < churn_blocks:
        fresh = (dice.choice(holders), [dice.getrandbits(64) for _ in range(500)])
        gone = held.popleft()
        started = time.thread_time()
        index.remove(gone[0], Tier.DEVICE, gone[1])
        index.store(fresh[0], Tier.DEVICE, fresh[1])
        seconds += time.thread_time() - started
        held.append(fresh)
        stored += 500
        if stored % (churn_blocks // 10) < 500:
            samples.append(_rss_bytes())
    return {
        "bytes_per_block": round(bytes_per_block, 1),
        "bytes_per_block_after_churn": round((samples[-1] - before) / index.blocks - 8, 1),
        "churned_blocks": stored,
        "rss_after_tenth_mib": round(samples[0] / 2**20, 1),
        "rss_at_end_mib": round(samples[-1] / 2**20, 1),
        "growth_percent": round((samples[-1] / samples[0] - 1) * 100, 2),
        "apply_ns_per_block": round(seconds / stored / 2 * 1e9, 1),
    }


def measure_matches() -> dict[str, float]:
    """Match of a 1000-block chain, microseconds p50, by workers and distinct match lengths."""
    found = {}
    for workers, depths in ((64, 1), (64, 4), (64, 16), (512, 4), (512, 64)):
        dice = random.Random(9)
        index = BlockIndex(bytes_max=1 << 28)
        chain = [dice.getrandbits(64) for _ in range(CHAIN_BLOCKS)]
        for at in range(workers):
            holder = Holder(WorkerId(f"p/w{at}"))
            index.add(holder)
            index.renew(holder, until=1.0)
            index.store(holder, Tier.DEVICE, chain[: CHAIN_BLOCKS * (at % depths + 1) // depths - 7])
        durations = []
        for _ in range(300):
            started = time.perf_counter_ns()
            matches = index.matches(chain, now=0.0)
            durations.append(time.perf_counter_ns() - started)
        assert len(matches) == workers
        found[f"{workers} workers, {depths} depths"] = round(statistics.median(durations) / 1000, 1)
    return found


def measure_steps() -> dict[str, float]:
    """The longest single step in milliseconds of CPU time, by tokens of the worker's engine step."""
    return {f"{tokens} tokens": _longest_step_ms(tokens // 16) for tokens in (8192, 65_536)}


def _longest_step_ms(blocks: int) -> float:
    dice = random.Random(3)
    stream = _stream(BlockIndex(bytes_max=INDEX_BYTES))
    longest = 0.0
    for seq, payload in enumerate(_batches(dice, blocks=blocks, block_size=16, evict=True, events=1, total=80_000)):
        stream.receive(seq, payload, now=0.0)
        more = True
        while more:
            started = time.thread_time()
            more = stream.step()
            longest = max(longest, time.thread_time() - started)
    return round(longest * 1000, 2)


def _batches(dice: random.Random, *, blocks: int, block_size: int, evict: bool, events: int, total: int = 400_000):
    """Encoded engine steps; `events` stored events share the step's blocks, evictions come first, one block each."""
    encode = msgspec.msgpack.Encoder().encode
    cached: deque[int] = deque()
    per_event = blocks // events
    for _ in range(total // blocks // (2 if evict else 1)):
        step: list[object] = []
        if evict and len(cached) >= total // 10:
            step += [
                {"type": "BlockRemoved", "block_hashes": [cached.popleft()], "medium": "GPU", "group_idx": 0}
                for _ in range(blocks)
            ]
        for _ in range(events):
            hashes = [dice.getrandbits(64) for _ in range(per_event)]
            cached.extend(hashes)
            step.append(_stored(dice, hashes, block_size))
        yield encode([1.5, step, 0])


def _stored(dice: random.Random, hashes: list[int], block_size: int) -> dict[str, object]:
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": dice.getrandbits(64),
        "token_ids": dice.choices(range(VOCABULARY), k=len(hashes) * block_size),
        "block_size": block_size,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None] * len(hashes),
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }


def _stream(index: BlockIndex) -> EventStream:
    stream = EventStream(index, Holder(WorkerId("p/w0")))
    stream.connect()
    assert stream.ask is not None
    stream.replay_end(stream.ask)
    while stream.step():
        pass
    return stream


def _feed(stream: EventStream, batches: list[bytes]) -> float:
    """Seconds of CPU time for all batches, one after the other as they come from a socket."""
    started = time.thread_time()
    for seq, payload in enumerate(batches):
        stream.receive(seq, payload, now=0.0)
        while stream.step():
            pass
    return time.thread_time() - started


def _recorded(path: Path) -> list[tuple[int, bytes]]:
    """(number, payload) as they came from the socket."""
    encode = msgspec.msgpack.Encoder().encode
    with gzip.open(path, "rt") as lines:
        messages = [json.loads(line) for line in lines]
    return [(message["seq"], encode(message["batch"])) for message in messages]


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def table(result: dict[str, Any]) -> str:
    """Any: the figures of each part that was measured."""
    lines = [
        f"{rate['name']:45} {rate['blocks_per_s'] / 1e6:6.2f} M blocks/s  {rate['us_per_batch']:8.1f} µs a batch"
        for rate in result.get("rates", [])
    ]
    if memory := result.get("memory"):
        lines.append(
            f"{memory['bytes_per_block']} bytes a block, {memory['bytes_per_block_after_churn']} after churn;"
            f" {memory['churned_blocks']} blocks churned: RSS"
            f" {memory['rss_after_tenth_mib']} → {memory['rss_at_end_mib']} MiB ({memory['growth_percent']} %),"
            f" {memory['apply_ns_per_block']} ns to apply one among {RESIDENT_BLOCKS}"
        )
    lines += [f"match, {name}: {duration_us} µs" for name, duration_us in result.get("match", {}).items()]
    longest = result.get("step_ms_max", {})
    lines += [f"longest step, batches of {name}: {longest_ms} ms" for name, longest_ms in longest.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()

"""A real worker's own counters, read with the reference parser, to hold Tidemark's figures against."""

from __future__ import annotations

import httpx
import msgspec
import zmq
from prometheus_client.parser import text_string_to_metric_families

COUNTERS = (
    "vllm:prompt_tokens_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:external_prefix_cache_hits_total",
    "vllm:generation_tokens_total",
    "vllm:kv_block_lifetime_seconds_count",
    "vllm:time_to_first_token_seconds_count",
)


def counters_of(url: str) -> dict[str, float]:
    """Sum over label sets of each counter in COUNTERS."""
    page = httpx.get(f"{url}/metrics", timeout=10, trust_env=False).text
    sums = dict.fromkeys(COUNTERS, 0.0)
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name in sums:
                sums[sample.name] += sample.value
    return sums


def increases(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {name: after[name] - before[name] for name in COUNTERS}


def blocks_in_events(replay_endpoint: str) -> dict[str, int]:
    """Stored and removed blocks over the worker's whole life, counted from its own replay of every event batch."""
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.setsockopt(zmq.RCVTIMEO, 10_000)
    dealer.connect(replay_endpoint)
    counts = {"stored": 0, "removed": 0}
    try:
        dealer.send_multipart([b"", (0).to_bytes(8, "big")])
        while True:
            *_, payload = frames = dealer.recv_multipart()
            if frames[-2] == b"\xff" * 8:
                return counts
            for event in msgspec.msgpack.decode(payload)[1]:
                if event["type"] == "BlockStored":
                    counts["stored"] += len(event["block_hashes"])
                elif event["type"] == "BlockRemoved":
                    counts["removed"] += len(event["block_hashes"])
    finally:
        dealer.close()
        context.term()

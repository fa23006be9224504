"""Cost of one routing decision: fingerprint + choose + reserve + first byte + release, in microseconds of CPU.

    python -m benchmarks.decision [--json] [--rounds N] [--rows 64x65536,64x524288x6554]

Prompts are conversations that share heads, as real ones do: nine in ten continue an earlier prompt, with a tenth of
their length as new text. In rows of three numbers all do, and the third is the bytes of new text, whatever the length.
Every worker has a known cache of 500,000 tokens. `decision` is fingerprint + choose; reserving and releasing come on
top. Memory is measured with tracemalloc over distinct 4 KB prompts, the tail of `index.insert` over a flood of unique
prompts. Pure Python, one thread, thread CPU time: other processes disturb caches, not counts.
"""

from __future__ import annotations

import argparse
import json
import random
import time
import tracemalloc
from dataclasses import asdict, dataclass

from router.contract.ids import KeyId, NamespaceId, PoolId, TemplateRef, TenantId, WorkerId
from router.contract.secrets import FleetKey, new_api_key
from router.contract.snapshot import (
    KeyGrant,
    NamespacePolicy,
    PolicySnapshot,
    PoolPolicy,
    TenantGrant,
    WorkerEntry,
    sign_snapshot,
)
from router.core.index import PrefixIndex
from router.core.limits import CoreLimits
from router.core.model import Outcome, RoutingRequest
from router.core.table import RoutingTable

WORKERS = (4, 64, 512)
PROMPT_BYTES = (1024, 65_536, 524_288)
"""256, 16k and 128k tokens."""
CAPACITY_TOKENS = 500_000
CONVERSATIONS = 50
UNDER_WAY = 32
"""Requests kept outstanding while measuring, so that load terms are not all zero."""
MEMORY_PROMPTS = 20_000
MEMORY_PROMPT_BYTES = 4096


@dataclass(frozen=True)
class Row:
    workers: int
    prompt_bytes: int
    new_bytes: int | None
    """Behind a known prefix, in every prompt; None: a tenth of nine in ten, all of the others."""
    fingerprint_us_p50: float
    choose_us_p50: float
    reserve_us_p50: float
    release_us_p50: float
    decision_us_p50: float
    decision_us_p99: float
    total_us_p50: float
    total_us_p99: float


@dataclass(frozen=True)
class InsertTail:
    """Microseconds of one `index.insert` of a unique 4 KB prompt while the index fills, turns over and is swept."""

    prompts: int
    us_p50: float
    us_p999: float
    us_max: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=2000, help="requests measured for each row")
    parser.add_argument("--flood", type=int, default=600_000, help="unique prompts of the insert measurement")
    parser.add_argument("--rows", type=rows_of, help="WORKERSxBYTES[xNEW],… and nothing else")
    arguments = parser.parse_args()
    sizes = arguments.rows or [(workers, size, None) for workers in WORKERS for size in PROMPT_BYTES]
    rows = [measure(*size, rounds=arguments.rounds) for size in sizes]
    if arguments.rows and arguments.json:
        print(json.dumps({"rows": [asdict(row) for row in rows]}))
        return
    bytes_a_prompt = index_bytes_a_prompt()
    tail = insert_tail(arguments.flood)
    if arguments.json:
        figures = {"rows": [asdict(row) for row in rows], "bytes_per_4k_prompt": bytes_a_prompt, "insert": asdict(tail)}
        print(json.dumps(figures, indent=1))
        return
    for row in rows:
        new = "" if row.new_bytes is None else f", {row.new_bytes} new"
        print(
            f"{row.workers:4} workers {row.prompt_bytes:6} B{new}:"
            f" decision p50 {row.decision_us_p50:6.1f} p99 {row.decision_us_p99:7.1f}"
            f" total p50 {row.total_us_p50:6.1f} p99 {row.total_us_p99:7.1f}"
            f"  (fingerprint {row.fingerprint_us_p50:.1f}, choose {row.choose_us_p50:.1f},"
            f" reserve {row.reserve_us_p50:.1f}, release {row.release_us_p50:.1f}) µs"
        )
    print(f"{bytes_a_prompt:.0f} bytes for each distinct {MEMORY_PROMPT_BYTES} B prompt")
    print(
        f"insert of {tail.prompts:,} unique prompts:"
        f" p50 {tail.us_p50:.1f} p99.9 {tail.us_p999:.1f} max {tail.us_max:.1f} µs"
    )


def row_list(text: str) -> list[tuple[int, int]]:
    """`64x65536,512x65536` → [(64, 65536), (512, 65536)]"""
    pairs = (part.split("x") for part in text.split(","))
    return [(int(workers), int(size)) for workers, size in pairs]


def rows_of(text: str) -> list[tuple[int, int, int | None]]:
    """`64x65536,64x524288x6554` → [(64, 65536, None), (64, 524288, 6554)]"""
    rows = ([int(number) for number in part.split("x")] for part in text.split(","))
    return [(row[0], row[1], row[2] if len(row) > 2 else None) for row in rows]


def measure(workers: int, prompt_bytes: int, new_bytes: int | None, *, rounds: int) -> Row:
    table, key = build_table(workers)
    if new_bytes is None:
        prompts, unmeasured = conversation_prompts(prompt_bytes, rounds), 0
    else:
        prompts, unmeasured = continued_prompts(prompt_bytes, rounds, new_bytes=new_bytes), CONVERSATIONS
    clock = time.thread_time_ns
    steps: list[list[int]] = [[], [], [], [], [], []]
    under_way = []
    for number, (head, tail) in enumerate(prompts):
        # Joined here: the parser has just written the text that a fingerprint is made of.
        prompt = head + tail
        now = 1000.0 + number * 0.002
        grant = table.resolve(api_key=key, model="m", now=now)
        started = clock()
        fingerprint = table.fingerprint(grant, prompt, template=TemplateRef(""))
        hashed = clock()
        decision = table.choose(RoutingRequest("r", grant, fingerprint), now=now)
        chosen = clock()
        under_way.append(table.reserve(decision, now=now))
        reserved = clock()
        if len(under_way) > UNDER_WAY:
            done = under_way.pop(0)
            hit = done.decision.predicted_hit_tokens
            outcome = Outcome(
                True,
                prompt_tokens=done.decision.predicted_prompt_tokens,
                completion_tokens=50,
                cached_tokens=hit,
            )
            before = clock()
            table.first_byte(done, now=now)
            table.release(done, outcome, now=now)
            released = clock() - before
        else:
            released = 0
        if number < unmeasured:
            continue
        for step, nanoseconds in zip(
            steps,
            (
                hashed - started,
                chosen - hashed,
                reserved - chosen,
                released,
                chosen - started,
                reserved - started + released,
            ),
            strict=True,
        ):
            step.append(nanoseconds)
    medians = [quantile_us(step, 0.5) for step in steps]
    fingerprint_us, choose_us, reserve_us, release_us, decision_us, total_us = medians
    return Row(
        workers=workers,
        prompt_bytes=prompt_bytes,
        new_bytes=new_bytes,
        fingerprint_us_p50=fingerprint_us,
        choose_us_p50=choose_us,
        reserve_us_p50=reserve_us,
        release_us_p50=release_us,
        decision_us_p50=decision_us,
        decision_us_p99=quantile_us(steps[4], 0.99),
        total_us_p50=total_us,
        total_us_p99=quantile_us(steps[5], 0.99),
    )


def index_bytes_a_prompt() -> float:
    """Bytes the table grows by for each distinct prompt, at about half a generation of fill."""
    table, key = build_table(64)
    grant = table.resolve(api_key=key, model="m", now=1000.0)
    rest = bytes(MEMORY_PROMPT_BYTES - 4)
    prompts = [number.to_bytes(4) + rest for number in range(MEMORY_PROMPTS)]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number, prompt in enumerate(prompts):
        now = 1000.0 + number * 0.01
        fingerprint = table.fingerprint(grant, prompt, template=TemplateRef(""))
        reservation = table.reserve(table.choose(RoutingRequest("r", grant, fingerprint), now=now), now=now)
        table.release(reservation, Outcome(True, prompt_tokens=1024, completion_tokens=50, cached_tokens=0), now=now)
        table.drain_heat(now=now)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return grown / MEMORY_PROMPTS


def insert_tail(prompts: int) -> InsertTail:
    """Every prompt is eight blocks that nobody sent before; the workers' epochs change and bits are swept meanwhile."""
    limits = CoreLimits()
    index = PrefixIndex(bytes_max=limits.index_bytes_max, tenant_share_max=limits.index_tenant_share_max)
    workers = [WorkerId(f"p/w{number}") for number in range(64)]
    for worker in workers:
        index.add_worker(worker)
        index.set_capacity(worker, CAPACITY_TOKENS * 4 / limits.block_bytes)
    rng, tenant, clock = random.Random(1), TenantId("acme"), time.thread_time_ns
    took: list[int] = []
    for number in range(prompts):
        hashes = [rng.getrandbits(128) for _ in range(8)]
        started = clock()
        index.insert(tenant, hashes, workers[number % len(workers)], now=number * 0.01)
        took.append(clock() - started)
    return InsertTail(prompts, quantile_us(took, 0.5), quantile_us(took, 0.999), quantile_us(took, 1.0))


def build_table(workers: int) -> tuple[RoutingTable, str]:
    fleet_key = FleetKey(bytes(range(32)))
    key_id, secret, text = new_api_key()
    pool, namespace, tenant = PoolId("p"), NamespaceId("acme/n"), TenantId("acme")
    snapshot = PolicySnapshot(
        tenants={tenant: TenantGrant()},
        keys={KeyId(key_id): KeyGrant(tenant, namespace, fleet_key.api_key_hash(key_id, secret))},
        namespaces={namespace: NamespacePolicy(tenant, "n", "nonce")},
        pools={pool: PoolPolicy(models=("m",))},
        workers={
            WorkerId(f"p/w{n}"): WorkerEntry(pool, f"http://10.0.0.1:{9000 + n}", kv_capacity_tokens=CAPACITY_TOKENS)
            for n in range(workers)
        },
    )
    table = RoutingTable(fleet_key=fleet_key, booted_at=0.0, rng=random.Random(1))
    document = sign_snapshot(snapshot, version=1, epoch=1, created_at=999.0, fleet_key=fleet_key)
    table.apply_snapshot(document, snapshot, now=999.0)
    return table, text


def conversation_prompts(size: int, count: int) -> list[tuple[bytes, bytes]]:
    """(head, tail) of prompts; nine in ten share all but their last tenth with one of CONVERSATIONS."""
    rng = random.Random(11)
    heads = [rng.randbytes(size * 9 // 10) for _ in range(CONVERSATIONS)]
    prompts = []
    for _ in range(count):
        head = rng.choice(heads) if rng.random() < 0.9 else rng.randbytes(size * 9 // 10)
        prompts.append((head, rng.randbytes(size - len(head))))
    return prompts


def continued_prompts(size: int, count: int, *, new_bytes: int) -> list[tuple[bytes, bytes]]:
    """(head, tail) of prompts: each of CONVERSATIONS once, then `count` with the same heads and new tails."""
    rng = random.Random(12)
    heads = [rng.randbytes(size - new_bytes) for _ in range(CONVERSATIONS)]
    return [(head, rng.randbytes(new_bytes)) for head in [*heads, *rng.choices(heads, k=count)]]


def quantile_us(nanoseconds: list[int], q: float) -> float:
    ordered = sorted(nanoseconds)
    return round(ordered[min(len(ordered) - 1, int(q * len(ordered)))] / 1000.0, 1)


if __name__ == "__main__":
    main()

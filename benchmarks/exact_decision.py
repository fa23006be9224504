"""Cost of one decision in exact mode: reading the prompt, its text's fingerprint, matching its blocks, choosing.

    python -m benchmarks.exact_decision [--json] [--rounds N] [--rows 64x16000]

The prompt's first message is known and 60 bytes of a second were never seen: tokenising them is within the figure.
Every worker is exact and holds the first quarter of each of TALKS conversations; HOLDERS of them hold more of one, to
different depths. The lab's tokenizer, trained first, and its template. Pure Python, one thread, thread CPU time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import runpy
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

from benchmarks.decision import row_list
from router.adapters.exact_pool import ExactPool, PoolPlan
from router.adapters.parity import ParityReport
from router.adapters.tokenizer import ExactTokenizer
from router.contract.ids import NamespaceId, PoolId, TemplateRef, TenantId, WorkerId
from router.contract.secrets import FleetKey
from router.contract.snapshot import (
    NamespacePolicy,
    PolicySnapshot,
    PoolPolicy,
    TenantGrant,
    WorkerEntry,
    sign_snapshot,
)
from router.core.exact.block_index import BlockIndex, Holder, Tier
from router.core.exact.chains import ExactPrefix
from router.core.model import Grant, Outcome, RoutingRequest
from router.core.table import RoutingTable
from router.http import openai
from router.http.openai import ApiRequest
from router.http.plain_chat import read_plain
from router.http.prompt_fields import prompt_fields

WORKERS = (4, 64, 512)
PROMPT_TOKENS = (256, 16_000, 128_000)
BLOCK_SIZE = 16
TALKS = 8
HOLDERS = 4
TAIL_BYTES = 60
WORDS = ("import", "return", "value", "range", "print", "class", "except", "path", "False", "None", "while", "yield")
POOL = PoolId("p")
FLEET = FleetKey(bytes(32))
_FAILED = Outcome(ok=False, error="upstream_error", status=502)
"""Ends a request without teaching anything."""


@dataclass(frozen=True)
class Row:
    """Microseconds of thread CPU time."""

    workers: int
    prompt_tokens: int
    read_us_p50: float
    match_us_p50: float
    choose_us_p50: float
    decision_us_p50: float
    decision_us_p99: float


async def measure(folder: Path, workers: int, tokens: int, rounds: int) -> Row:
    draw = random.Random(7)
    index = BlockIndex(bytes_max=1 << 30)
    names = [WorkerId(f"p/w{number}") for number in range(workers)]
    pool = await _exact_pool(folder, names, index)
    table, grant = _table(names)
    heads = [" ".join(draw.choice(WORDS) for _ in range(tokens)) for _ in range(TALKS)]
    for head in heads:
        prefix = await _prefix(pool, grant, _api(head, "begin"))
        blocks = len(prefix.hashes)
        further = draw.sample(names, HOLDERS)
        for name in names:
            depth = draw.randrange(blocks // 4, blocks + 1) if name in further else blocks // 4
            index.store(Holder(name), Tier.DEVICE, prefix.hashes[:depth])
    samples: list[tuple[float, float, float]] = []
    for number in range(rounds + 50):
        for name in names if number % 500 == 0 else ():
            index.renew(Holder(name), until=time.monotonic() + 3600)
        tail = "".join(draw.choice("abcdefghij ") for _ in range(TAIL_BYTES))
        samples.append(await _sample(pool, table, grant, _api(draw.choice(heads), tail)))
    await pool.close()
    return _row(workers, tokens, samples[50:])


async def _sample(pool: ExactPool, table: RoutingTable, grant: Grant, api: ApiRequest) -> tuple[float, float, float]:
    clock, now = time.thread_time_ns, time.time()
    started = clock()
    fields = prompt_fields(api, unknown_fields="drop")
    prefix = pool.read(grant, fields or {}, kind="chat")
    read = clock()
    if not isinstance(prefix, ExactPrefix):
        raise RuntimeError("the prompt is not known")
    exact = pool.prompt(prefix)
    matched = clock()
    assert exact is not None and api.text is not None
    fingerprint = table.fingerprint(grant, api.text, template=TemplateRef(""))
    decision = table.choose(RoutingRequest("r", grant, fingerprint, exact=exact), now=now)
    chosen = clock()
    table.release(table.reserve(decision, now=now), _FAILED, now=now)
    return (read - started) / 1000, (matched - read) / 1000, (chosen - matched) / 1000


async def _exact_pool(folder: Path, names: list[WorkerId], index: BlockIndex) -> ExactPool:
    proven = asyncio.Event()

    async def check(url: str, tokenizer: ExactTokenizer, model: str) -> ParityReport:
        return ParityReport("equal", tokenizer.version, 1, 0, models={model: None})

    def changed(pool: ExactPool) -> None:
        if pool.status == "exact" and len(pool.exact_workers()) == len(names):
            proven.set()

    for name in names:
        index.add(Holder(name))
        index.renew(Holder(name), until=time.monotonic() + 3600)
    plan = PoolPlan(folder.name, "sha256", BLOCK_SIZE, "m", frozenset(names), dict.fromkeys(names, "http://w"))
    pool = ExactPool(
        POOL,
        plan,
        folder=folder.parent,
        secret=FLEET.subkey("exact/v1"),
        index=index,
        check=check,
        clock=time.monotonic,
        changed=changed,
    )
    await asyncio.wait_for(proven.wait(), 30)
    return pool


async def _prefix(pool: ExactPool, grant: Grant, api: ApiRequest) -> ExactPrefix:
    found = pool.read(grant, prompt_fields(api, unknown_fields="drop") or {}, kind="chat")
    prefix = found if isinstance(found, ExactPrefix) or found is None else await found()
    if prefix is None:
        raise RuntimeError("the prompt cannot be read")
    return prefix


def _api(head: str, tail: str) -> ApiRequest:
    body = {"model": "m", "messages": [{"role": "system", "content": head}, {"role": "user", "content": tail}]}
    return _read(json.dumps(body, separators=(",", ":")).encode())


def _read(body: bytes) -> ApiRequest:
    return read_plain(body) or openai.parse(body, chat=True)


def _table(names: list[WorkerId]) -> tuple[RoutingTable, Grant]:
    policy = NamespacePolicy(tenant=TenantId("acme"), slug="chat", generation_nonce="n")
    snapshot = PolicySnapshot(
        tenants={TenantId("acme"): TenantGrant()},
        keys={},
        namespaces={NamespaceId("acme/chat"): policy},
        pools={POOL: PoolPolicy(models=("m",), block_size=BLOCK_SIZE)},
        workers={
            name: WorkerEntry(POOL, f"http://127.0.0.1:{9000 + number}", kv_capacity_tokens=500_000)
            for number, name in enumerate(names)
        },
    )
    table = RoutingTable(fleet_key=FLEET, booted_at=0.0, rng=random.Random(1))
    document = sign_snapshot(snapshot, version=1, epoch=1, created_at=time.time(), fleet_key=FLEET)
    table.apply_snapshot(document, snapshot, now=time.time())
    return table, table.grant_of(NamespaceId("acme/chat"), model="m")


def _row(workers: int, tokens: int, samples: list[tuple[float, float, float]]) -> Row:
    totals = sorted(sum(sample) for sample in samples)
    read, match, choose = (sorted(sample[part] for sample in samples)[len(samples) // 2] for part in range(3))
    return Row(workers, tokens, read, match, choose, totals[len(totals) // 2], totals[len(totals) * 99 // 100])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=1000, help="requests measured for each row")
    parser.add_argument("--rows", type=row_list, help="WORKERSxTOKENS,… instead of all")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with tempfile.TemporaryDirectory() as folder:
        make_model = Path(__file__).resolve().parent.parent / "docker" / "lab" / "mk_model.py"
        runpy.run_path(str(make_model))["main"](f"{folder}/model")
        sizes = arguments.rows or [(workers, tokens) for workers in WORKERS for tokens in PROMPT_TOKENS]
        rows = [
            asyncio.run(measure(Path(folder, "model"), workers, tokens, arguments.rounds)) for workers, tokens in sizes
        ]
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    print("workers  tokens     read    match   choose  decision p50  p99   (µs)")
    for row in rows:
        parts = f"{row.read_us_p50:8.0f} {row.match_us_p50:8.0f} {row.choose_us_p50:8.0f}"
        print(f"{row.workers:7d} {row.prompt_tokens:7d} {parts} {row.decision_us_p50:13.0f} {row.decision_us_p99:5.0f}")


if __name__ == "__main__":
    main()

"""The isolation bound (S8) under load: leaks put in at 1e-4 must all be flagged, honest answers never.

    python -m benchmarks.isolation [--json] [--answers 1000000] [--seed 1]

Conversations of four tenants run on two workers whose caches hold every block of every prompt and reply, by token: a
token is 1–7 bytes, found from the text alone, a block is 16 tokens, and each tenant's blocks are its own. Several
requests are under way at once, heads are shared by tenants, replies come back as the next prompt. A leak is an answer
that counts another tenant's cached blocks: a prompt which that tenant sent to the same worker before. It is
detectable when it counts more than an oracle allows, which knows the tenant's true history by tokens and applies the
bound's definition to it (router/core/isolation.py). After each `LIFE_ANSWERS` workers and router begin anew.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from xxhash import xxh3_64_intdigest

from router.contract.ids import KeyId, NamespaceId, PoolId, TemplateRef, TenantId, WorkerId
from router.contract.live import KvLive
from router.contract.secrets import FleetKey
from router.contract.snapshot import (
    KeyGrant,
    NamespacePolicy,
    PolicySnapshot,
    PoolPolicy,
    TenantGrant,
    WorkerEntry,
    sign_snapshot,
)
from router.core.limits import CoreLimits
from router.core.model import Grant, Outcome, Reservation, RoutingRequest
from router.core.table import RoutingTable

LEAK_SHARE = 1e-4
LIFE_ANSWERS = 20_000
TENANTS, WORKERS, THREADS, UNDER_WAY_MAX = 4, 2, 60, 4
BLOCK_TOKENS = 16
TEXT_BYTES_MAX = 16_000
"""A conversation that has grown so long is followed by another one."""
FOREIGN_BYTES_MIN = 6_000
"""Of a prompt that leaks: long enough to stand out from the bound's roughness."""
TOKEN_BYTES_MAX = 7
BLOCK_BYTES = CoreLimits().block_bytes
INDEX_BYTES = 1 << 30
"""Nothing is evicted within a life: what is not known any more is `unknown`, and not what is measured here."""


@dataclass
class Result:
    answers: int = 0
    leaks: int = 0
    detectable: int = 0
    flagged: int = 0
    """Of the detectable ones."""
    missed: int = 0
    false_alarms: int = 0
    """Honest answers that were accused."""
    unknown: int = 0
    seconds: float = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--answers", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    result = soak(arguments.answers, seed=arguments.seed)
    if arguments.json:
        print(json.dumps(asdict(result)))
    else:
        print(
            f"{result.answers:,} answers in {result.seconds:.0f} s: {result.leaks} leaks put in, {result.detectable} "
            f"detectable, {result.flagged} flagged; {result.false_alarms} false alarms, {result.unknown} unknown"
        )
    raise SystemExit(1 if result.missed or result.false_alarms else 0)


def soak(answers: int, *, seed: int, leak_share: float = LEAK_SHARE) -> Result:
    """Lives until so many answers were judged."""
    result, began = Result(), time.perf_counter()
    rng = random.Random(seed)
    while result.answers < answers:
        Life(rng, result).run(min(LIFE_ANSWERS, answers - result.answers), leak_share)
    result.seconds = time.perf_counter() - began
    return result


@dataclass(frozen=True)
class Thread:
    """A conversation so far: its text and the chained hashes of its whole blocks of tokens."""

    tenant: int
    text: bytes
    chain: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    """Byte at which each block of `chain` ends."""
    worker: int = 0
    """The one that saw it last."""

    def grown(self, text: bytes, worker: int) -> tuple[int, Thread]:
        """(tokens, the conversation with `text` for its text, which goes on from this one)."""
        # A token at the very end may have been cut short: what lies so near to it is read again.
        settled = bisect_right(self.ends, len(self.text) - TOKEN_BYTES_MAX)
        chain, ends = list(self.chain[:settled]), list(self.ends[:settled])
        at = begin = ends[-1] if ends else 0
        count, size = 0, len(text)
        while at < size:
            at += 1 + text[at] % TOKEN_BYTES_MAX
            count += 1
            if count % BLOCK_TOKENS == 0:
                at = min(at, size)
                chain.append(xxh3_64_intdigest(text[begin:at], chain[-1] if chain else 0))
                ends.append(at)
                begin = at
        return settled * BLOCK_TOKENS + count, Thread(self.tenant, text, tuple(chain), tuple(ends), worker)


@dataclass
class Under:
    """A request under way."""

    reservation: Reservation
    place: int
    """Where its conversation stands among the threads; -1 = nowhere."""
    thread: Thread
    """Before this turn."""
    prompt: bytes
    reply: bytes
    worker: int
    leaks_from: int | None
    """The tenant whose blocks the worker counts as well."""


class Life:
    """Two workers that begin empty, and a router that saw them begin."""

    def __init__(self, rng: random.Random, result: Result) -> None:
        self.rng, self.result = rng, result
        self.now = 1000.0
        self.grants, self.table = _router(rng, self.now)
        self.now += 10.0
        caches = {_worker(n): KvLive(at=self.now, cache_epoch_at=self.now) for n in range(WORKERS)}
        self.table.apply_live(now=self.now, workers={}, kv=caches)
        self.now += 5.0
        self.blocks: list[list[set[int]]] = [[set() for _ in range(TENANTS)] for _ in range(WORKERS)]
        self.loose: dict[tuple[int, int], int] = {}
        """(tenant, worker) → most prompt and completion tokens of a request shorter than a block of text."""
        self.heads = [rng.randbytes(rng.randrange(6000)) for _ in range(3)]
        self.threads = [self._fresh() for _ in range(THREADS)]
        self.under_way: list[Under] = []

    def run(self, answers: int, leak_share: float) -> None:
        for _ in range(answers):
            self.under_way.append(self._leak() if self.rng.random() < leak_share else self._turn())
            while len(self.under_way) > self.rng.randrange(UNDER_WAY_MAX):
                self._answer(self.under_way.pop(self.rng.randrange(len(self.under_way))))
        while self.under_way:
            self._answer(self.under_way.pop())

    def _fresh(self) -> Thread:
        """A third begin with a head that tenants share, and some are shorter than a block of text."""
        head = self.rng.choice(self.heads) if self.rng.random() < 0.3 else b""
        return Thread(self.rng.randrange(TENANTS), head + self.rng.randbytes(self.rng.randrange(50, 2500)))

    def _turn(self) -> Under:
        rng = self.rng
        place = rng.randrange(THREADS)
        thread = self.threads[place]
        if len(thread.text) > TEXT_BYTES_MAX:
            thread = self.threads[place] = self._fresh()
        prompt = thread.text + rng.randbytes(rng.randrange(0, 500)) if rng.random() < 0.9 else thread.text
        reply = rng.randbytes(rng.choice((20, 200, 800)))
        return self._send(place, thread, prompt, reply, rng.randrange(WORKERS), None)

    def _leak(self) -> Under:
        """A tenant sends what another sent to the same worker, and the worker looks up both tenants' blocks."""
        found = [thread for thread in self.threads if len(thread.text) >= FOREIGN_BYTES_MIN and thread.chain]
        if not found:
            return self._turn()
        victim = self.rng.choice(found)
        tenant = (victim.tenant + self.rng.randrange(1, TENANTS)) % TENANTS
        self.result.leaks += 1
        prompt = victim.text + self.rng.randbytes(40)
        return self._send(-1, Thread(tenant, victim.text), prompt, b"ok", victim.worker, victim.tenant)

    def _send(
        self, place: int, thread: Thread, prompt: bytes, reply: bytes, worker: int, leaks_from: int | None
    ) -> Under:
        grant = self.grants[thread.tenant]
        request = RoutingRequest("r", grant, self.table.fingerprint(grant, prompt, template=TemplateRef("")))
        decision = self.table.choose(request, now=self.now)
        decision.worker = _worker(worker)
        reservation = self.table.reserve(decision, now=self.now)
        return Under(reservation, place, thread, prompt, reply, worker, leaks_from)

    def _answer(self, under: Under) -> None:
        tenant, worker = under.thread.tenant, under.worker
        own = self.blocks[worker][tenant]
        prompt_tokens, asked = under.thread.grown(under.prompt, worker)
        total, answered = asked.grown(under.prompt + under.reply, worker)
        honest = cached = _cached(asked.chain, own, prompt_tokens)
        if under.leaks_from is not None:
            cached = max(honest, _cached(asked.chain, own | self.blocks[worker][under.leaks_from], prompt_tokens))
        detectable = cached > self._allowed(under, asked.ends, honest)
        completion = max(total - prompt_tokens, 1)
        self._judge(under, Outcome(True, prompt_tokens=prompt_tokens, completion_tokens=completion,
                                   cached_tokens=cached), detectable=detectable)  # fmt: skip
        own.update(answered.chain)
        if len(under.prompt) < BLOCK_BYTES:
            self.loose[tenant, worker] = max(self.loose.get((tenant, worker), 0), prompt_tokens + completion)
        if under.place >= 0:
            self.threads[under.place] = answered

    def _allowed(self, under: Under, ends: Sequence[int], honest: int) -> int:
        """The bound by its definition, from the true history: at most a block of tokens beyond what is truly held."""
        held = ends[honest // BLOCK_TOKENS - 1] if honest else 0
        shared = held + BLOCK_TOKENS * TOKEN_BYTES_MAX
        rough = (shared // BLOCK_BYTES + 1) * BLOCK_BYTES - 1 + CoreLimits().template_tokens_max
        return max(rough, self.loose.get((under.thread.tenant, under.worker), 0), honest + 3 * BLOCK_TOKENS)

    def _judge(self, under: Under, outcome: Outcome, *, detectable: bool) -> None:
        self.now += 0.001
        self.table.first_byte(under.reservation, now=self.now)
        verdict = self.table.release(under.reservation, outcome, now=self.now).isolation
        result = self.result
        result.answers += 1
        result.unknown += verdict == "unknown"
        if under.leaks_from is None:
            result.false_alarms += verdict == "violation"
        elif detectable:
            result.detectable += 1
            result.flagged += verdict == "violation"
            result.missed += verdict != "violation"


def _cached(chain: Sequence[int], blocks: set[int], prompt_tokens: int) -> int:
    """Tokens of the longest held prefix; the last token is never taken from the cache."""
    held = 0
    for block in chain[: max(prompt_tokens - 1, 0) // BLOCK_TOKENS]:
        if block not in blocks:
            break
        held += 1
    return held * BLOCK_TOKENS


def _worker(number: int) -> WorkerId:
    return WorkerId(f"p/w{number}")


def _router(rng: random.Random, now: float) -> tuple[list[Grant], RoutingTable]:
    """(grant of each tenant, a table that serves them)."""
    key, keys, texts = FleetKey(bytes(32)), {}, []
    for number in range(TENANTS):
        name, secret = f"{number:012d}", f"{number:043d}"
        tenant = TenantId(f"t{number}")
        keys[KeyId(name)] = KeyGrant(tenant, NamespaceId(f"{tenant}/n"), key.api_key_hash(KeyId(name), secret))
        texts.append(f"tm_{name}_{secret}")
    tenants = [TenantId(f"t{number}") for number in range(TENANTS)]
    snapshot = PolicySnapshot(
        tenants={tenant: TenantGrant() for tenant in tenants},
        keys=keys,
        namespaces={NamespaceId(f"{tenant}/n"): NamespacePolicy(tenant, "n", f"nonce-{tenant}") for tenant in tenants},
        pools={PoolId("p"): PoolPolicy(models=("m",))},
        workers={_worker(n): WorkerEntry(PoolId("p"), f"http://10.0.0.{n + 1}:1") for n in range(WORKERS)},
    )
    limits = CoreLimits(index_bytes_max=INDEX_BYTES)
    table = RoutingTable(fleet_key=key, booted_at=now, limits=limits, rng=rng)
    document = sign_snapshot(snapshot, version=1, epoch=1, created_at=now, fleet_key=key)
    table.apply_snapshot(document, snapshot, now=now)
    return [table.resolve(api_key=text, model="m", now=now) for text in texts], table


if __name__ == "__main__":
    main()

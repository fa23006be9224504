"""Hot prefixes between two drains, by worker, for the operator's pages.

A prefix is counted at a fixed depth (HEAT_BLOCKS), so that the conversations under one head add up. The first
`prefixes_max` distinct ones of an interval are followed: a hot one comes early and often, and memory stays bounded. Of
each the first prompt's chain is kept until the drain: a reference, whose memory is bounded by the second's traffic.
What leaves the process is a keyed id, never a block hash (S5). `count` is O(1), `drain` O(prefixes + top · log n).
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Sequence
from typing import Final

from router.contract.ids import NamespaceId, PoolId, TenantId, WorkerId
from router.contract.secrets import FleetKey
from router.contract.telemetry import HOLDERS_MAX, PrefixHeat
from router.core.fleet import Pool
from router.core.index import PrefixIndex
from router.core.model import Decision, Fingerprint

HEAT_BLOCKS: Final = 4
"""2 KiB of text: most system prompts are told apart there; a shorter prompt counts at its own depth."""


def heat_key(fleet_key: FleetKey) -> bytes:
    """Of the ids: equal on every router of a fleet."""
    return fleet_key.subkey("heat/v1")


def heat_block(fingerprint: Fingerprint) -> int | None:
    """Hash of the block at which the prompt's prefix is told apart; None for a prompt below one block."""
    hashes = fingerprint.hashes
    depth = HEAT_BLOCKS if len(hashes) > HEAT_BLOCKS else len(hashes)
    return hashes[depth - 1] if depth else None


def prefix_id(key: bytes, block: int) -> str:
    """16 hexadecimal digits that tell nothing of the block's hash."""
    return hashlib.blake2b(block.to_bytes(16), key=key, digest_size=8).hexdigest()


class Counted:
    """One prefix since the last drain."""

    __slots__ = (
        "block", "by_worker", "chain", "first_blocks", "hashes", "hit_tokens", "namespace", "owner", "placed", "pool",
        "prompt_tokens", "queue_ms", "requests", "spills", "spread", "text_bytes", "tokens_a_block",
    )  # fmt: skip

    def __init__(
        self, block: int, decision: Decision, fingerprint: Fingerprint, chain: Sequence[int], first_blocks: int
    ) -> None:
        grant = decision.request.grant
        self.block: Final = block
        self.namespace: Final[NamespaceId] = grant.namespace
        self.owner: Final[TenantId] = grant.owner
        self.pool: Final[PoolId] = grant.pool
        self.hashes: Final = fingerprint.hashes
        self.chain: Final = chain
        """The chain whose heat is measured: the workers' own blocks of an exact prompt, else `hashes`."""
        self.first_blocks: Final = first_blocks
        self.text_bytes: Final = min(HEAT_BLOCKS, len(fingerprint.hashes)) * fingerprint.block_bytes
        self.tokens_a_block = 0.0
        """Of `chain`."""
        self.requests = self.prompt_tokens = self.hit_tokens = self.spills = self.placed = self.spread = 0
        self.queue_ms = 0.0
        self.by_worker: dict[WorkerId, int] = {}


class Heat:
    def __init__(self, *, fleet_key: FleetKey, prefixes_max: int, top: int) -> None:
        self.key: Final = heat_key(fleet_key)
        self._prefixes_max = prefixes_max
        self._top = top
        self._counts: dict[int, Counted] = {}

    def count(self, decision: Decision, chain: Sequence[int], first_blocks: int, tokens_a_block: float) -> None:
        """A request was reserved. `chain`, `first_blocks`, `tokens_a_block`: as its heat is measured (`hot.py`)."""
        fingerprint = decision.request.fingerprint
        block = None if fingerprint is None else heat_block(fingerprint)
        if fingerprint is None or block is None:
            return
        count = self._counts.get(block)
        if count is None:
            if len(self._counts) >= self._prefixes_max:
                return
            count = self._counts[block] = Counted(block, decision, fingerprint, chain, first_blocks)
        worker = decision.worker
        count.requests += 1
        count.by_worker[worker] = count.by_worker.get(worker, 0) + 1
        count.prompt_tokens += decision.predicted_prompt_tokens
        count.hit_tokens += decision.predicted_hit_tokens
        count.queue_ms += decision.predicted_queue_ms
        count.tokens_a_block = tokens_a_block
        if decision.spill:
            count.spills += 1
        if decision.spread:
            count.placed += 1
            count.spread = decision.spread

    def drain(self) -> list[Counted]:
        """The hottest prefixes since the last call, hottest first."""
        hottest = heapq.nlargest(self._top, self._counts.values(), key=lambda count: count.requests)
        self._counts = {}
        return hottest

    def id_of(self, fingerprint: Fingerprint) -> str:
        """The prefix's public id; "" for a prompt below one block."""
        block = heat_block(fingerprint)
        return "" if block is None else prefix_id(self.key, block)

    def row(self, count: Counted, pool: Pool, index: PrefixIndex, *, now: float) -> PrefixHeat:
        """What an operator is told of it: counts, and how far and where it is cached at this moment."""
        depth = min(HEAT_BLOCKS, len(count.hashes))
        holders = [worker for worker, blocks in index.matches(count.owner, count.hashes[:depth]) if blocks == depth]
        members = len(pool.serving) or 1
        block_share = count.tokens_a_block / pool.capacity_tokens if pool.capacity_tokens else 0.0
        hot = pool.hot.head(count.chain, count.first_blocks, block_share=block_share, homes_max=members, now=now)
        shared = pool.hot.shared_blocks(count.chain, count.first_blocks)
        first = count.chain[min(count.first_blocks, len(count.chain)) - 1] if count.chain else 0
        return PrefixHeat(
            prefix=prefix_id(self.key, count.block),
            namespace=count.namespace,
            pool=count.pool,
            tokens=pool.text.tokens(count.text_bytes),
            by_worker={str(worker): requests for worker, requests in count.by_worker.items()},
            head_tokens=int(shared * count.tokens_a_block),
            prompt_tokens=count.prompt_tokens,
            hit_tokens=count.hit_tokens,
            queue_ms=count.queue_ms,
            spills=count.spills,
            placed=count.placed,
            load=pool.hot.load(first, now=now),
            homes=min(max(1 if hot is None else hot.homes, count.spread), members),
            holders=[str(worker) for worker in holders[:HOLDERS_MAX]],
        )

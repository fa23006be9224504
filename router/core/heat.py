"""Hot prefixes between two drains, by worker, for the operator's heat map.

A prefix is counted at a fixed depth (HEAT_BLOCKS), so that the conversations under one head add up. The first
`prefixes_max` distinct ones of an interval are followed: a hot one comes early and often, and memory stays bounded.
What leaves the process is a keyed id, never a block hash (S5). `count` is O(1), `drain` O(prefixes).
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable

import msgspec

from router.contract.ids import NamespaceId, PoolId, WorkerId
from router.contract.secrets import FleetKey
from router.contract.telemetry import PrefixHeat
from router.core.model import Fingerprint

HEAT_BLOCKS = 4
"""2 KiB of text: most system prompts are told apart there; a shorter prompt counts at its own depth."""


class _Count(msgspec.Struct):
    namespace: NamespaceId
    pool: PoolId
    text_bytes: int
    requests: int = 0
    by_worker: dict[WorkerId, int] = {}


class Heat:
    def __init__(self, *, fleet_key: FleetKey, prefixes_max: int, top: int) -> None:
        self._key = fleet_key.subkey("heat/v1")
        self._prefixes_max = prefixes_max
        self._top = top
        self._counts: dict[int, _Count] = {}

    def count(self, namespace: NamespaceId, pool: PoolId, fingerprint: Fingerprint, worker: WorkerId) -> None:
        hashes = fingerprint.hashes
        depth = HEAT_BLOCKS if len(hashes) > HEAT_BLOCKS else len(hashes)
        if depth == 0:
            return
        block = hashes[depth - 1]
        count = self._counts.get(block)
        if count is None:
            if len(self._counts) >= self._prefixes_max:
                return
            count = self._counts[block] = _Count(namespace, pool, depth * fingerprint.block_bytes)
        count.requests += 1
        count.by_worker[worker] = count.by_worker.get(worker, 0) + 1

    def drain(self, tokens_of: Callable[[PoolId, int], int]) -> list[PrefixHeat]:
        """The hottest prefixes since the last call, hottest first. `tokens_of(pool, text bytes)` gives their length."""
        hottest = heapq.nlargest(self._top, self._counts.items(), key=lambda item: item[1].requests)
        self._counts = {}
        return [
            PrefixHeat(
                prefix=self._public_id(block),
                namespace=count.namespace,
                pool=count.pool,
                tokens=tokens_of(count.pool, count.text_bytes),
                by_worker={str(worker): requests for worker, requests in count.by_worker.items()},
            )
            for block, count in hottest
        ]

    def _public_id(self, block: int) -> str:
        return hashlib.blake2b(block.to_bytes(16), key=self._key, digest_size=8).hexdigest()

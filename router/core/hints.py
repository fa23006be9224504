"""What other routers sent where, in few words: anchors of prompts, and the workers that the prompts went to.

Without it each router of a fleet learns by itself: a conversation whose turns reach four routers is computed on four
workers. Workers that tell what they hold (exact mode) need no hints.

An anchor is a place in a prompt, ANCHORS blocks deep, named by a keyed 128-bit hash of the block hash there (S5: what
leaves the process). A decision tells the anchors that lie behind what was known of its prompt; a router that knows less
of a prompt than an anchor reaches takes the anchor's word: so much of it was sent to that worker.

Costs: one BLAKE2b (1 µs) an anchor looked up or told, at most len(ANCHORS) a request, and only while there are other
routers. A wrong hint costs
a miss, and is true from then on: the worker it named has computed the prompt. Memory: bounded, with a share for each
tenant (S23).
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from router.contract.ids import TenantId, WorkerId
from router.contract.secrets import FleetKey
from router.core.exact.tenant_cache import TenantCache

ANCHORS: Final = (
    4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192,
)  # fmt: skip
"""Depths in text blocks: from the home's (`view.HOME_BLOCKS`) to a fingerprint's last. An anchor tells at least two
thirds of what is there."""
FRESH_S: Final = 600.0
"""Older words are not taken: with no news of a prompt for so long, a busy cache has replaced it."""
WORKERS_AN_ANCHOR: Final = 8
"""A head that went to more is everywhere."""
TOLD_MAX: Final = 65_536
"""(anchor, worker) pairs remembered as told; forgotten all at once, and told again."""
OUTBOX_MAX: Final = 1_024
"""Anchors between two tellings, a quarter of a second: some 24 KB. What comes beyond is not told."""
OUTBOX_TENANT_MAX: Final = 512
"""Of one tenant: a flood of its prompts leaves room for the others'."""
KEY_BYTES: Final = 16
VALUE_BYTES: Final = 400
"""A dict of up to four workers and their times."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Prompts of a tenant that went to a worker: their anchors, KEY_BYTES each, joined."""

    tenant: TenantId
    worker: WorkerId
    anchors: bytes


class Hints:
    def __init__(self, *, fleet_key: FleetKey, bytes_max: int, tenant_share_max: float) -> None:
        self._key = fleet_key.subkey("anchor/v1")
        self._heard: TenantCache[dict[WorkerId, float]] = TenantCache(
            bytes_max=bytes_max, tenant_share_max=tenant_share_max
        )
        self._emptied_at: dict[WorkerId, float] = {}
        self._heard_at = 0.0
        self._told: set[tuple[int, WorkerId]] = set()
        self._outbox: dict[tuple[TenantId, WorkerId], list[bytes]] = {}
        self._waiting: dict[TenantId, int] = {}
        self.untold = 0
        """Anchors that found the outbox full."""

    @property
    def size_bytes(self) -> int:
        return self._heard.bytes_used

    def tell(self, tenant: TenantId, hashes: Sequence[int], worker: WorkerId, *, known: int) -> None:
        """Note for the others that a prompt went to the worker; `known` blocks of it had been seen before.

        Of the known part only the deepest anchor is told, since the others were when they were new.
        """
        reach = bisect_right(ANCHORS, len(hashes))
        first = min(bisect_right(ANCHORS, known), max(reach - 1, 0))
        for depth in ANCHORS[first:reach]:
            anchor = self._anchor(hashes[depth - 1])
            said = (int.from_bytes(anchor), worker)
            if said not in self._told:
                self._add(tenant, worker, anchor, said)

    def take_outbox(self) -> list[Placed]:
        """What is to be told since the last call."""
        told = [Placed(tenant, worker, b"".join(anchors)) for (tenant, worker), anchors in self._outbox.items()]
        self._outbox, self._waiting = {}, {}
        return told

    def hear(self, placed: Iterable[Placed], *, now: float) -> None:
        """What another router told."""
        self._heard_at = now
        for each in placed:
            for at in range(0, len(each.anchors) - KEY_BYTES + 1, KEY_BYTES):
                key = int.from_bytes(each.anchors[at : at + KEY_BYTES])
                workers = self._heard.shard(each.tenant).get(key)
                if workers is None:
                    self._heard.put(each.tenant, key, {each.worker: now}, VALUE_BYTES)
                elif each.worker in workers or len(workers) < WORKERS_AN_ANCHOR:
                    workers[each.worker] = now

    def holders(self, tenant: TenantId, hashes: Sequence[int], *, beyond: int, now: float) -> dict[WorkerId, int]:
        """Worker → leading blocks of the prompt that others sent there, where that is more than `beyond` blocks."""
        shard = self._heard.shard(tenant)
        for place in range(bisect_right(ANCHORS, len(hashes)) - 1, -1, -1):
            depth = ANCHORS[place]
            if depth <= beyond:
                break
            workers = shard.get(int.from_bytes(self._anchor(hashes[depth - 1])))
            if workers is None:
                continue
            found = {worker: depth for worker, at in workers.items() if self._counts(worker, at, now)}
            if found:
                return found
        return {}

    def worker_emptied(self, worker: WorkerId) -> None:
        """It restarted or cleared its cache: nothing heard of it so far counts, and what goes there is told again."""
        self._emptied_at[worker] = self._heard_at
        self._told = {said for said in self._told if said[1] != worker}

    def keep_workers(self, workers: Iterable[WorkerId]) -> None:
        """Forget when workers that are gone were emptied."""
        kept = set(workers)
        self._emptied_at = {worker: at for worker, at in self._emptied_at.items() if worker in kept}

    def _counts(self, worker: WorkerId, at: float, now: float) -> bool:
        return now - at <= FRESH_S and at > self._emptied_at.get(worker, 0.0)

    def _add(self, tenant: TenantId, worker: WorkerId, anchor: bytes, said: tuple[int, WorkerId]) -> None:
        waiting = self._waiting.get(tenant, 0)
        if waiting >= OUTBOX_TENANT_MAX or sum(self._waiting.values()) >= OUTBOX_MAX:
            self.untold += 1
            return
        if len(self._told) >= TOLD_MAX:
            self._told.clear()
        self._told.add(said)
        self._waiting[tenant] = waiting + 1
        self._outbox.setdefault((tenant, worker), []).append(anchor)

    def _anchor(self, block_hash: int) -> bytes:
        return hashlib.blake2b(block_hash.to_bytes(16), key=self._key, digest_size=KEY_BYTES).digest()

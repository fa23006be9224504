"""A worker's cache and event publisher, as plainly as can be: what the index must agree with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from router.contract.ids import WorkerId
from router.core.exact.block_index import BlockIndex, Holder, Tier

BLOCK_SIZE = 16
MEDIA = {Tier.DEVICE: "GPU", Tier.HOST: "CPU", Tier.REMOTE: "DISK"}
HOLDER = Holder(WorkerId("p/w1"))


def stored(hashes: list[int], tier: Tier = Tier.DEVICE, **fields: Any) -> dict[str, Any]:
    return {
        "type": "BlockStored", "block_hashes": hashes, "parent_block_hash": None, "token_ids": [1] * len(hashes),
        "block_size": BLOCK_SIZE, "lora_id": None, "medium": MEDIA[tier], "lora_name": None, "extra_keys": None,
        "group_idx": 0, "kv_cache_spec_kind": "full_attention",
    } | fields  # fmt: skip


def removed(hashes: list[int], tier: Tier = Tier.DEVICE, **fields: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": hashes, "medium": MEDIA[tier], "group_idx": 0} | fields


CLEARED = {"type": "AllBlocksCleared"}


def batch(*events: Any, ts: float = 1.0) -> bytes:
    return msgspec.msgpack.encode([ts, list(events), 0])


Content = Counter[tuple[Tier, int]]
"""References of each block in each tier."""


def apply(content: Content, events: Iterable[dict[str, Any]]) -> Content:
    after = Counter(content)
    for event in events:
        if event["type"] == "AllBlocksCleared":
            after.clear()
            continue
        tier = next(tier for tier, medium in MEDIA.items() if medium == event["medium"])
        for block in event["block_hashes"]:
            if event["type"] == "BlockStored":
                after[tier, block] += 1
            elif after[tier, block] > 0:
                after[tier, block] -= 1
    return +after


class NaiveWorker:
    """Lives, numbered batches, and what the cache holds after each of them."""

    def __init__(self, *, buffer_steps: int) -> None:
        self.buffer_steps = buffer_steps
        self.lives: list[list[Content]] = []
        self._ts = 0.0
        self.restart()

    @property
    def content(self) -> Content:
        return self.lives[-1][-1]

    def restart(self) -> None:
        self.batches: list[bytes] = []
        self.lives.append([Counter()])

    def publish(self, *events: dict[str, Any]) -> tuple[int, bytes]:
        self._ts += 1.0
        payload = batch(*events, ts=self._ts)
        self.batches.append(payload)
        self.lives[-1].append(apply(self.content, events))
        return len(self.batches) - 1, payload

    def replay(self, start: int) -> list[tuple[int, bytes]]:
        first = max(start, len(self.batches) - self.buffer_steps)
        return [(seq, self.batches[seq]) for seq in range(first, len(self.batches))]


def content_of(index: BlockIndex, holder: Holder, universe: Iterable[int]) -> set[tuple[Tier, int]]:
    return {(entry.tier, block) for block in universe for entry in index.entries(block) if entry.holder == holder}

"""A store of KV blocks that all workers of a fleet share: written through, least recently used out, read at a price.

A prompt's blocks are stored when it is computed, and prompt and answer when the request ends, tails first, so that a
chain's parent never goes before its child and the longest stored prefix is found by bisection. Storing costs a worker
nothing. Loading holds up the step that admits the request, as with connectors that load within the forward pass:
set-up + size ÷ bandwidth, and only where computing would take longer. Workers do not compete for the bandwidth.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence

from simulator.fleet.conditions import Tier
from simulator.fleet.hardware import GpuProfile
from simulator.fleet.names import BlockName

GIB = 1024.0**3


class SharedTier:
    def __init__(self, tier: Tier, profile: GpuProfile, *, block_tokens: int) -> None:
        self._token_s = profile.kv_bytes_per_token / (tier.gib_per_s * GIB)
        self._setup_s = tier.setup_ms / 1_000
        blocks = tier.gib * GIB / (profile.kv_bytes_per_token * block_tokens)
        self._blocks_max = blocks if math.isinf(blocks) else int(blocks)
        self._blocks: OrderedDict[BlockName, None] = OrderedDict()
        self.evictions = 0

    @property
    def blocks(self) -> int:
        return len(self._blocks)

    def load_s(self, tokens: int) -> float:
        return self._setup_s + tokens * self._token_s

    def longest_prefix(self, chain: Sequence[BlockName], known: int, limit: int) -> int:
        """Leading blocks, at most `limit`, that are stored here or among the first `known`: O(log n)."""
        low, high = known, max(known, min(limit, len(chain)))
        while low < high:
            middle = (low + high + 1) // 2
            if chain[middle - 1] in self._blocks:
                low = middle
            else:
                high = middle - 1
        return low

    def store(self, chain: Sequence[BlockName], count: int) -> None:
        blocks = self._blocks
        for name in reversed(chain[:count]):
            blocks[name] = None
            blocks.move_to_end(name)
        while len(blocks) > self._blocks_max:
            blocks.popitem(last=False)
            self.evictions += 1

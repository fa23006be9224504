"""A byte-bounded cache with a share for each tenant, so that one tenant's prompts never push out another's (S23).

    young   { key → (value, bytes) }  touched since the last rotation
    old     { key → (value, bytes) }  touched in the rotation before
    dying   what the last rotation dropped, freed a few entries at a time
    ledger  bytes of all that, and of what the tenant's values share, told by the values as they grow and go

Every operation is O(1) amortised, and the bound may be passed by what one prompt adds. Keys are 128-bit digests that
already contain the tenant's secret scope: a tenant sees neither another's entries nor, by the time a look-up takes,
whether they exist.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from router.contract.ids import TenantId

ENTRY_BYTES: Final = 180
"""Key (48), its dict slot at mean fill (76) and the pair (56) on CPython 3.13, beside the value's own bytes."""
SHARD_BYTES: Final = 600
"""An empty shard: three dicts, the ledger and its place by tenant."""
FREED_AT_ONCE: Final = 64
"""Dropped entries freed at each insertion while there are some: no request pays for a whole generation."""
SHRUNK_EVERY: Final = 64
"""Insertions between two looks for the largest tenant, which cost O(tenants), while the whole is too large."""


@dataclass(slots=True)
class Ledger:
    """Bytes of one tenant, and of all tenants together."""

    all_tenants: Ledger | None = None
    used: int = 0

    def add(self, size: int) -> None:
        self.used += size
        if self.all_tenants is not None:
            self.all_tenants.used += size


@dataclass(slots=True)
class Shard[V]:
    """One tenant's entries. Use it within one step of the event loop: any `put` may forget it."""

    ledger: Ledger
    young: dict[int, tuple[V, int]] = field(default_factory=dict)
    old: dict[int, tuple[V, int]] = field(default_factory=dict)
    dying: dict[int, tuple[V, int]] = field(default_factory=dict)

    def get(self, key: int) -> V | None:
        entry = self.young.get(key)
        if entry is None:
            entry = self.old.pop(key, None)
            if entry is None:
                return None
            self.young[key] = entry
        return entry[0]

    def shrink(self) -> None:
        """Frees some of what was dropped, else drops what was not touched since the last rotation."""
        if not self.dying:
            self.dying, self.old, self.young = self.old, self.young, {}
        for _ in range(min(FREED_AT_ONCE, len(self.dying))):
            self.ledger.add(-self.dying.popitem()[1][1])


class TenantCache[V]:
    def __init__(self, *, bytes_max: int, tenant_share_max: float) -> None:
        self._bytes_max = bytes_max
        self._tenant_bytes_max = int(bytes_max * tenant_share_max)
        self._shards: dict[TenantId, Shard[V]] = {}
        self._total = Ledger()
        self._puts = 0

    @property
    def bytes_used(self) -> int:
        return self._total.used

    def shard(self, tenant: TenantId) -> Shard[V]:
        shard = self._shards.get(tenant)
        if shard is None:
            shard = self._shards[tenant] = Shard(Ledger(self._total))
            shard.ledger.add(SHARD_BYTES)
        return shard

    def put(self, tenant: TenantId, key: int, value: V, value_bytes: int) -> None:
        """Adds an entry unless the key is there. `value_bytes`: what only this value holds, beyond ENTRY_BYTES."""
        shard = self.shard(tenant)
        size = ENTRY_BYTES + value_bytes
        if size > self._tenant_bytes_max // 2 or key in shard.young or key in shard.old:
            return
        shard.young[key] = (value, size)
        shard.ledger.add(size)
        if shard.dying or shard.ledger.used > self._tenant_bytes_max:
            shard.shrink()
        self._puts += 1
        if self._puts % SHRUNK_EVERY == 0 and self._total.used > self._bytes_max:
            self._shrink()

    def _shrink(self) -> None:
        """The tenant that holds most gives entries; one left with none is forgotten."""
        for _ in range(SHRUNK_EVERY):
            if self._total.used <= self._bytes_max:
                return
            tenant = max(self._shards, key=lambda name: self._shards[name].ledger.used)
            shard = self._shards[tenant]
            shard.shrink()
            if not (shard.young or shard.old or shard.dying):
                shard.ledger.add(-SHARD_BYTES)
                del self._shards[tenant]

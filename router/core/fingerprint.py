"""Chained keyed hashes of a prompt's whole text blocks.

    hashes[i] = XXH3-128(block i, seed = low 64 bits of hashes[i − 1]);  before the first one, a secret root

The root is derived from the fleet key for each cache domain, generation and model: hashes are equal on every router of
a fleet and unrelated between domains, generations and models. XXH3 is not a cryptographic MAC; these values stay
inside the process, and a collision would cost a cache miss. What leaves the process is hashed again (`heat.py`).

The prompt template's label is not part of the root: it names where a text came from, the text says what the
worker computes, and equal texts share a cache whatever their label.

Head cache: a stretch of blocks (STRETCHES_BLOCKS, the longest first) is recognised by one hash of its bytes, seeded
with the hash before it, and brings its blocks' hashes along. The seed is as secret as the root, so an entry answers its
own namespace and generation alone; and each tenant has its share of the cache, so how long a fingerprint takes tells
of nobody else.

Cost: O(text bytes), 0.2 µs a block of 512 bytes; of a known head 4 µs for 128 KiB, most of it the pass over its bytes.
Memory: bounded by ROOTS_MAX and `heads_bytes_max`.
"""

from __future__ import annotations

import hashlib
from struct import Struct
from typing import Final

from xxhash import xxh3_128_digest, xxh3_128_intdigest

from router.contract.secrets import FleetKey, framed
from router.core.exact.tenant_cache import TenantCache
from router.core.model import Fingerprint, Grant

ROOTS_MAX: Final = 65_536
"""Remembered (cache domain, generation, model) roots; about 250 bytes each."""

STRETCHES_BLOCKS: Final = (256, 32)
"""128 KiB and 16 KiB. Long ones make long heads cheap, short ones leave little to be hashed where a prompt parts from
the known; still shorter ones are looked up as slowly as they are hashed."""
BYTES_PER_HASH: Final = 56
"""Of a remembered hash: a 128-bit int (48) and its place in a list. The int is often shared: by a longer stretch, and
by the index while it has the block."""
TENANT_SHARE_MAX: Final = 0.5

_ROOT_BYTES: Final = 8
"""All that a seed takes."""


class Fingerprinter:
    def __init__(self, *, fleet_key: FleetKey, block_bytes: int, blocks_max: int, heads_bytes_max: int) -> None:
        self._key = fleet_key.subkey("prefix/v2")
        self.block_bytes = block_bytes
        self._blocks_max = blocks_max
        self._split = Struct(f"{block_bytes}s").iter_unpack
        self._roots: dict[tuple[str, int, str, str], int] = {}
        self._heads: TenantCache[list[int]] = TenantCache(bytes_max=heads_bytes_max, tenant_share_max=TENANT_SHARE_MAX)

    @property
    def heads_bytes(self) -> int:
        """Memory of the head cache."""
        return self._heads.bytes_used

    def fingerprint(self, grant: Grant, text: bytes) -> Fingerprint:
        """Hashes of the whole blocks of canonical `text`; the tail shorter than a block is left out (S0.1)."""
        size = self.block_bytes
        whole = min(len(text) // size, self._blocks_max) * size
        hashes: list[int] = []
        if whole:
            view, last, at = memoryview(text), self._root(grant), 0
            for level, blocks in enumerate(STRETCHES_BLOCKS if whole >= STRETCHES_BLOCKS[-1] * size else ()):
                # A long stretch at the very end would hold what is new: it is worth remembering when more follows.
                last_blocks = blocks if level else blocks + STRETCHES_BLOCKS[-1]
                while whole - at >= last_blocks * size:
                    hashes += self._stretch(grant, last, view[at : at + blocks * size], level)
                    last, at = hashes[-1], at + blocks * size
            if at < whole:
                hashes += self._hash_blocks(last, view[at:whole])
        return Fingerprint(hashes, size, len(text))

    def _stretch(self, grant: Grant, last: int, data: memoryview, level: int) -> list[int]:
        """The hashes of a stretch that follows the hash `last`, remembered or made. Not to be changed."""
        key = xxh3_128_intdigest(data, last)
        hashes = self._heads.shard(grant.tenant).get(key)
        if hashes is None:
            if level + 1 == len(STRETCHES_BLOCKS):
                hashes = self._hash_blocks(last, data)
            else:
                hashes, part = [], STRETCHES_BLOCKS[level + 1] * self.block_bytes
                for at in range(0, len(data), part):
                    hashes += self._stretch(grant, last, data[at : at + part], level + 1)
                    last = hashes[-1]
            self._heads.put(grant.tenant, key, hashes, BYTES_PER_HASH * len(hashes))
        return hashes

    def _hash_blocks(self, last: int, data: memoryview) -> list[int]:
        """Hashes of the blocks of `data`, which is whole blocks."""
        hashes: list[int] = []
        from_bytes = int.from_bytes
        for (block,) in self._split(data):
            # A seed is taken modulo 2^64. Two calls, because `intdigest` makes its integer in five steps.
            last = from_bytes(xxh3_128_digest(block, last))
            hashes.append(last)
        return hashes

    def _root(self, grant: Grant) -> int:
        policy = grant.policy
        key = (grant.cache, policy.generation, policy.generation_nonce, grant.model)
        root = self._roots.get(key)
        if root is None:
            if len(self._roots) >= ROOTS_MAX:
                self._roots.clear()
            cache, generation, nonce, model = key
            message = framed(cache, str(generation), nonce, model)
            secret = hashlib.blake2b(message, key=self._key, digest_size=_ROOT_BYTES).digest()
            root = self._roots[key] = int.from_bytes(secret)
        return root


def common_blocks(left: list[int], right: list[int]) -> int:
    """Length of the common prefix of two hash chains, by bisection: a chain once parted never meets again."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high) // 2
        if left[middle] == right[middle]:
            low = middle + 1
        else:
            high = middle
    return low

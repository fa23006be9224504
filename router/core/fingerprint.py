"""Chained keyed hashes of a prompt's whole text blocks.

`hashes[i]` is XXH3-128 over a secret root and blocks 0…i, seeded with a secret: equal on every router of a fleet,
unrelated between namespaces, generations and models. XXH3 is not a cryptographic MAC; these values stay inside the
process, and a collision would cost a cache miss. What leaves the process is hashed again (`heat.py`).

The prompt template's label is not part of the root: it names where a text came from, the text says what the
worker computes, and equal texts share a cache whatever their label.

Cost: O(text bytes), about 0.3 µs a block of 512 bytes. Memory: O(namespaces × models in use), bounded.
"""

from __future__ import annotations

import hashlib

import xxhash

from router.contract.ids import NamespaceId
from router.contract.secrets import FleetKey, framed
from router.core.model import Fingerprint, Grant

ROOTS_MAX = 65_536
"""Remembered (namespace, generation, model) roots; about 250 bytes each."""

_SEED_BYTES = 8
_ROOT_BYTES = 32


class Fingerprinter:
    def __init__(self, *, fleet_key: FleetKey, block_bytes: int, blocks_max: int) -> None:
        self._key = fleet_key.subkey("prefix/v1")
        self.block_bytes = block_bytes
        self._blocks_max = blocks_max
        self._roots: dict[tuple[NamespaceId, int, str, str], xxhash.xxh3_128] = {}

    def fingerprint(self, grant: Grant, text: bytes) -> Fingerprint:
        """Hashes of the whole blocks of canonical `text`; the tail shorter than a block is left out (S0.1)."""
        size = self.block_bytes
        count = min(len(text) // size, self._blocks_max)
        hashes: list[int] = []
        if count:
            chain = self._root(grant).copy()
            update, digest = chain.update, chain.intdigest
            view = memoryview(text)
            for start in range(0, count * size, size):
                update(view[start : start + size])
                hashes.append(digest())
        return Fingerprint(hashes, size, len(text))

    def _root(self, grant: Grant) -> xxhash.xxh3_128:
        policy = grant.policy
        key = (grant.namespace, policy.generation, policy.generation_nonce, grant.model)
        root = self._roots.get(key)
        if root is None:
            if len(self._roots) >= ROOTS_MAX:
                self._roots.clear()
            root = self._roots[key] = self._new_root(key)
        return root

    def _new_root(self, key: tuple[NamespaceId, int, str, str]) -> xxhash.xxh3_128:
        namespace, generation, nonce, model = key
        message = framed(namespace, str(generation), nonce, model)
        secret = hashlib.blake2b(message, key=self._key, digest_size=_SEED_BYTES + _ROOT_BYTES).digest()
        seed = int.from_bytes(secret[:_SEED_BYTES])
        return xxhash.xxh3_128(secret[_SEED_BYTES:], seed=seed)


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

"""Chained keyed hashes of a prompt's whole text blocks.

`hashes[i]` is XXH3-128 over a secret root and blocks 0…i, seeded with a secret: equal on every router of a fleet,
unrelated between namespaces, generations and models. XXH3 is not a cryptographic MAC; these values stay inside the
process, and a collision would cost a cache miss. What leaves the process is hashed again (`heat.py`).

The prompt template's label is not part of the root: it names where a text came from, the text says what the
worker computes, and equal texts share a cache whatever their label.

Cost: O(text bytes), about 0.3 µs a block of 512 bytes; where a prompt begins as an earlier one did, its chunks of
CHUNK_BLOCKS blocks are recognised by one hash of their bytes, at a quarter of that. Memory: bounded by ROOTS_MAX and
CHUNKS_MAX.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import xxhash

from router.contract.ids import NamespaceId
from router.contract.secrets import FleetKey, framed
from router.core.model import Fingerprint, Grant

ROOTS_MAX = 65_536
"""Remembered (namespace, generation, model) roots; about 250 bytes each."""

CHUNK_BLOCKS = 32
"""16 KiB: shorter prompts are hashed as fast as they are looked up."""
CHUNKS_MAX = 8192
"""Chunks remembered, 128 MiB of prompts; about 3 KB each, of which half is shared with the index."""

_SEED_BYTES = 8
_ROOT_BYTES = 32


@dataclass(frozen=True, slots=True)
class _Chunk:
    hashes: list[int]
    chain: xxhash.xxh3_128
    """The state after its last block; copied, never updated."""


class Fingerprinter:
    def __init__(self, *, fleet_key: FleetKey, block_bytes: int, blocks_max: int) -> None:
        self._key = fleet_key.subkey("prefix/v1")
        self.block_bytes = block_bytes
        self._blocks_max = blocks_max
        self._roots: dict[tuple[NamespaceId, int, str, str], xxhash.xxh3_128] = {}
        self._chunk_seed = int.from_bytes(fleet_key.subkey("prefix-chunk/v1")[:_SEED_BYTES])
        self._chunks: dict[tuple[int, int], _Chunk] = {}
        """By (hash of all before the chunk, hash of its bytes), least recently used first."""

    def fingerprint(self, grant: Grant, text: bytes) -> Fingerprint:
        """Hashes of the whole blocks of canonical `text`; the tail shorter than a block is left out (S0.1)."""
        size = self.block_bytes
        count = min(len(text) // size, self._blocks_max)
        hashes: list[int] = []
        if count:
            view, chain = memoryview(text), self._root(grant)
            whole = count - count % CHUNK_BLOCKS
            for start in range(0, whole * size, CHUNK_BLOCKS * size):
                chunk = self._chunk(chain, hashes, view[start : start + CHUNK_BLOCKS * size])
                hashes += chunk.hashes
                chain = chunk.chain
            hashes += _hash_blocks(chain.copy(), view[whole * size : count * size], size)
        return Fingerprint(hashes, size, len(text))

    def _chunk(self, chain: xxhash.xxh3_128, before: list[int], data: memoryview) -> _Chunk:
        """The hashes of one chunk that follows `before`, remembered or made."""
        # The root stands for what comes before the first chunk: its state is as secret and as specific as a hash.
        parent = before[-1] if before else chain.intdigest()
        key = (parent, xxhash.xxh3_128_intdigest(data, self._chunk_seed))
        chunk = self._chunks.pop(key, None)
        if chunk is None:
            after = chain.copy()
            chunk = _Chunk(_hash_blocks(after, data, self.block_bytes), after)
            if len(self._chunks) >= CHUNKS_MAX:
                del self._chunks[next(iter(self._chunks))]
        self._chunks[key] = chunk
        return chunk

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


def _hash_blocks(chain: xxhash.xxh3_128, data: memoryview, size: int) -> list[int]:
    """Hashes after each block of `data`; moves `chain` on."""
    update, digest = chain.update, chain.intdigest
    hashes: list[int] = []
    for start in range(0, len(data), size):
        update(data[start : start + size])
        hashes.append(digest())
    return hashes


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

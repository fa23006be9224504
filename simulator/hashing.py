"""vLLM's chained block hashes (algorithm `sha256`), reproduced bit by bit.

h = sha256(pickle.dumps((parent, token ids, extra keys), protocol=5)); the first parent is sha256 of the pickled
string "vllm-none-hash"; extra keys are (("cache_salt", salt),) on block 0 of a salted request, else None. KV events
carry the low 64 bits. `tests/simulator/test_block_hashes.py` compares with events of a real worker.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Sequence
from typing import NewType

BlockDigest = NewType("BlockDigest", bytes)
"""The 32 bytes that identify a block's whole prefix."""

ROOT = BlockDigest(hashlib.sha256(pickle.dumps("vllm-none-hash", protocol=5)).digest())


def block_digest(parent: BlockDigest, token_ids: tuple[int, ...], salt: str | None) -> BlockDigest:
    """Digest of one block; `salt` only for the first block of a salted request."""
    extra = (("cache_salt", salt),) if salt is not None else None
    return BlockDigest(hashlib.sha256(pickle.dumps((parent, token_ids, extra), protocol=5)).digest())


def extend_chain(
    digests: list[BlockDigest], token_ids: Sequence[int], *, block_size_tokens: int, salt: str | None
) -> None:
    """Append the digests of the whole blocks of `token_ids` that `digests` does not reach yet."""
    for index in range(len(digests), len(token_ids) // block_size_tokens):
        parent = digests[-1] if digests else ROOT
        block = tuple(token_ids[index * block_size_tokens : (index + 1) * block_size_tokens])
        digests.append(block_digest(parent, block, salt if index == 0 else None))


def event_hash(digest: BlockDigest) -> int:
    """The low 64 bits: how a block is named in KV events."""
    return int.from_bytes(digest[-8:], "big")

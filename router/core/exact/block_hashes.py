"""The block hashes a vLLM worker computes for a prompt, so that KV events and predictions speak of the same blocks.

Formula (vLLM 0.32 `v1/core/kv_cache_utils.py`, checked against recorded events):

    root  = H("vllm-none-hash")              or H(PYTHONHASHSEED) where the workers set that
    h[i]  = H((h[i-1], tuple of the block's token ids, extra[i]))
    H     = sha256 of the pickle (protocol 5) or of the canonical CBOR of its argument
    extra = ("lora", name, path) on every block of an adapter's request, then ("cache_salt", salt) on block 0; else None

Events carry the low 64 bits as an integer; that is what a chain keeps beside the last full hash. A tail shorter than a
block is not hashed. The salt is in the first hash and so in all: two tenants never share a block (S2).

Cost: 1.5 µs a block of 16 tokens with `sha256`, 3 µs with `sha256_cbor`. The worker's pickle is CPython's own, memo
and framing included, so the C pickler is both the definition and the fastest way.
"""

from __future__ import annotations

import hashlib
import pickle
from array import array
from collections.abc import Callable, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any

NONE_HASH_SEED = "vllm-none-hash"
PICKLE_PROTOCOL = 5
EVENT_HASH_BYTES = 8
"""Low bytes of a hash that KV events carry as an integer."""
BLOCK_SIZE_MAX = 65_536
CBOR_IDS_MAX = 1 << 20
"""Remembered encodings of token ids; above any vocabulary in use."""

BlockHashes = array
"""`array("Q")`: 8 bytes a hash, side by side, so that a copy is one move of memory."""

_Extra = tuple[tuple[str, ...], ...] | None
_HashOfBlock = Callable[[bytes, tuple[int, ...], _Extra], bytes]


class UnknownHashAlgorithm(ValueError):
    """The worker names a prefix-caching hash that cannot be computed here: its pool stays approximate."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter as the worker knows it; its path is part of the worker's hash."""

    name: str
    path: str


class BlockHasher:
    """The hash chain of one pool: algorithm, block size and root seed of its workers.

    `algorithm` is the worker's `prefix_caching_hash_algo` (`cache_config_info` in its metrics). Raises
    UnknownHashAlgorithm, and ValueError for a block size outside 1…BLOCK_SIZE_MAX.
    """

    def __init__(self, *, algorithm: str, block_size: int, seed: str = NONE_HASH_SEED) -> None:
        hashes = _ALGORITHMS.get(algorithm)
        if hashes is None:
            raise UnknownHashAlgorithm(f"block hash {algorithm!r} is not one of {', '.join(sorted(_ALGORITHMS))}")
        if not 1 <= block_size <= BLOCK_SIZE_MAX:
            raise ValueError(f"block size {block_size} is not within 1…{BLOCK_SIZE_MAX}")
        hash_text, self._hash_block = hashes
        self.algorithm = algorithm
        self.block_size = block_size
        self.root = hash_text(seed)
        """Parent of every first block: 32 bytes."""

    def extend(
        self,
        parent: bytes,
        ids: Sequence[int],
        hashes: MutableSequence[int],
        *,
        salt: str | None = None,
        adapter: Adapter | None = None,
    ) -> bytes:
        """Appends the hash of each whole block of `ids` to `hashes`; returns the last full hash (32 bytes).

        `parent` is the full hash before `ids` (`root` for the prompt's start, which is where `salt` counts).
        """
        size, hash_block = self.block_size, self._hash_block
        tokens = tuple(ids)
        every = () if adapter is None else (("lora", adapter.name, adapter.path),)
        extra = ((*every, ("cache_salt", salt)) if salt and parent == self.root else every) or None
        append, from_bytes = hashes.append, int.from_bytes
        for start in range(0, len(tokens) // size * size, size):
            parent = hash_block(parent, tokens[start : start + size], extra)
            append(from_bytes(parent[-EVENT_HASH_BYTES:]))
            extra = every or None
        return parent

    def hashes(
        self, ids: Sequence[int], *, salt: str | None = None, adapter: Adapter | None = None
    ) -> BlockHashes[int]:
        """Low 64 bits of the hash of each whole block of the prompt `ids`."""
        out: BlockHashes[int] = array("Q")
        self.extend(self.root, ids, out, salt=salt, adapter=adapter)
        return out


def _sha256(value: Any) -> bytes:
    """Any: the two shapes that the formula hashes, a text and a block."""
    return hashlib.sha256(pickle.dumps(value, PICKLE_PROTOCOL)).digest()


def _sha256_block(
    parent: bytes,
    ids: tuple[int, ...],
    extra: _Extra,
    # Bound here: name look-ups are a tenth of the cost of a block.
    sha256: Callable[[bytes], Any] = hashlib.sha256,
    dumps: Callable[..., bytes] = pickle.dumps,
) -> bytes:
    digest: bytes = sha256(dumps((parent, ids, extra), PICKLE_PROTOCOL)).digest()
    return digest


def _cbor_text_hash(text: str) -> bytes:
    return hashlib.sha256(_cbor_text(text)).digest()


def _cbor_block(parent: bytes, ids: tuple[int, ...], extra: _Extra) -> bytes:
    """Canonical CBOR (RFC 8949, 4.2.1) of [parent, ids, extra], hashed."""
    data = b"".join((b"\x83\x58\x20", parent, _cbor_head(4, len(ids)), *map(_CBOR_IDS.__getitem__, ids)))
    return hashlib.sha256(data + _cbor_extra(extra)).digest()


def _cbor_extra(extra: _Extra) -> bytes:
    if extra is None:
        return b"\xf6"
    keys = (_cbor_head(4, len(key)) + b"".join(map(_cbor_text, key)) for key in extra)
    return _cbor_head(4, len(extra)) + b"".join(keys)


def _cbor_text(text: str) -> bytes:
    data = text.encode()
    return _cbor_head(3, len(data)) + data


def _cbor_head(major: int, value: int) -> bytes:
    """Major type and argument in the fewest bytes."""
    if value < 24:
        return bytes((major << 5 | value,))
    for info, width in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if value < 1 << 8 * width:
            return bytes((major << 5 | info,)) + value.to_bytes(width)
    raise OverflowError(f"{value} does not fit CBOR's 64 bits")


class _CborIds(dict[int, bytes]):
    """Encoding of each token id met; a vocabulary is finite, and the bound holds where ids are not from one."""

    def __missing__(self, token: int) -> bytes:
        if len(self) >= CBOR_IDS_MAX:
            self.clear()
        encoded = self[token] = _cbor_head(0, token)
        return encoded


_CBOR_IDS = _CborIds()

_ALGORITHMS: dict[str, tuple[Callable[[str], bytes], _HashOfBlock]] = {
    "sha256": (_sha256, _sha256_block),
    "sha256_cbor": (_cbor_text_hash, _cbor_block),
}

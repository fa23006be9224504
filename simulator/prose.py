"""Readable pseudo-text for block ids: equal (seed, id) pairs give equal text, others differ.

A block's text is groups of two syllables ("bako remi …"), so it reads like words and survives any whitespace rule.
16 bytes carry 40 random bits: two blocks that follow the same prefix are equal by chance once in 10**12 pairs.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

BYTES_PER_HASH = 16
"""One 64-bit hash gives 16 nibbles, one for each byte of text."""

_CONSONANTS = b"bdfghjklmnprstvz"
_VOWELS = b"aeioaeioaeioaeio"
_SPACE = b" " * 16
_LETTERS = np.frombuffer(_CONSONANTS + _VOWELS + _SPACE, dtype=np.uint8).reshape(3, 16)
_KIND_IN_GROUP = np.array([0, 1, 0, 1, 2], dtype=np.intp)
"""consonant vowel consonant vowel space"""
_NIBBLE_SHIFTS = np.arange(0, 64, 4, dtype=np.uint64)


def seed_of(*parts: object) -> int:
    """A 64-bit seed from any printable parts."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def block_text(seed: int, ids: NDArray[np.uint64], *, bytes_per_block: int) -> str:
    """The text of a row of blocks: `len(ids) * bytes_per_block` ASCII characters."""
    hashes_per_block = -(-bytes_per_block // BYTES_PER_HASH)
    counters = (ids[:, None] * np.uint64(hashes_per_block) + np.arange(hashes_per_block, dtype=np.uint64)).astype(
        np.uint64
    )
    hashes = _splitmix64(counters + np.uint64(seed))
    nibbles = (hashes[:, :, None] >> _NIBBLE_SHIFTS) & np.uint64(15)
    rows = nibbles.reshape(len(ids), -1)[:, :bytes_per_block].astype(np.intp)
    kinds = _KIND_IN_GROUP[np.arange(bytes_per_block) % len(_KIND_IN_GROUP)]
    return _LETTERS[kinds, rows].tobytes().decode("ascii")


def _splitmix64(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014); wraps modulo 2**64."""
    mixed = state * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))

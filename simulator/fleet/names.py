"""Block names: 64-bit numbers that stand for a whole prefix, derived from the traces' own ids."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import NewType

import numpy as np
from numpy.typing import NDArray

BlockName = NewType("BlockName", int)
Names = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


@lru_cache(maxsize=4_096)
def key_of(*parts: str | int) -> np.uint64:
    """A key for one family of names: equal parts, equal key."""
    text = "/".join(map(str, parts)).encode()
    return np.uint64(int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()))


def named(key: np.uint64, ids: Names) -> Names:
    """Names of ids within a family: the finaliser of SplitMix64 (Steele et al., 2014), a bijection for each key."""
    mixed = (ids + np.uint64(1)) * _GOLDEN ^ key
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_1
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
    return mixed ^ (mixed >> np.uint64(31))


def listed(names: Names, before: Names, numbers: list[BlockName]) -> list[BlockName]:
    """As a list, with the head that it shares with `before` from the list of that, `numbers`."""
    count = min(len(names), len(before))
    differs = names[:count] != before[:count]
    shared = int(differs.argmax()) if differs.any() else count
    return [*numbers[:shared], *names[shared:].tolist()]


def places(first: int, after: int) -> Names:
    """The numbers first … after − 1."""
    return np.arange(first, max(first, after), dtype=np.uint64)

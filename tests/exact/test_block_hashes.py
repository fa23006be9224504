"""The worker's block hashes: against its formula, and against events that real workers sent."""

from __future__ import annotations

import gzip
import hashlib
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.exact.block_hashes import Adapter, BlockHasher, UnknownHashAlgorithm

RECORDED = {
    "sha256": Path(__file__).parents[1] / "fixtures" / "vllm" / "kv_events_head.jsonl.gz",
    "sha256_cbor": Path(__file__).parent / "recorded" / "kv_events_sha256cbor_bytes.jsonl.gz",
}

IDS = st.lists(st.integers(0, 2**31), max_size=80)
SALTS = st.none() | st.text(min_size=1, max_size=50)
ADAPTERS = st.none() | st.builds(Adapter, st.text(min_size=1, max_size=9), st.text(max_size=9))


def by_pickle(value: Any) -> bytes:
    return hashlib.sha256(pickle.dumps(value, protocol=5)).digest()


def by_cbor(value: Any) -> bytes:
    return hashlib.sha256(cbor(value)).digest()


def cbor(value: Any) -> bytes:
    """RFC 8949 for what block hashes are made of."""
    if value is None:
        return b"\xf6"
    if isinstance(value, int):
        return head(0, value)
    if isinstance(value, bytes):
        return head(2, len(value)) + value
    if isinstance(value, str):
        return head(3, len(value.encode())) + value.encode()
    return head(4, len(value)) + b"".join(map(cbor, value))


def head(major: int, value: int) -> bytes:
    first = major * 32
    if value < 24:
        return bytes([first + value])
    if value < 2**8:
        return bytes([first + 24, value])
    if value < 2**16:
        return bytes([first + 25]) + value.to_bytes(2)
    return bytes([first + 26]) + value.to_bytes(4)


def plain(
    digest: Callable[[Any], bytes], ids: list[int], size: int, salt: str | None, adapter: Adapter | None
) -> list[int]:
    """The formula as the worker writes it."""
    parent, out = digest("vllm-none-hash"), []
    for start in range(0, len(ids) - len(ids) % size, size):
        keys = [("lora", adapter.name, adapter.path)] if adapter else []
        keys += [("cache_salt", salt)] if salt and start == 0 else []
        parent = digest((parent, tuple(ids[start : start + size]), tuple(keys) or None))
        out.append(int.from_bytes(parent, "big") & (2**64 - 1))
    return out


@pytest.mark.parametrize(("algorithm", "digest"), [("sha256", by_pickle), ("sha256_cbor", by_cbor)])
@given(ids=IDS, size=st.integers(1, 40), salt=SALTS, adapter=ADAPTERS)
def test_they_follow_the_formula(
    algorithm: str, digest: Callable[[Any], bytes], ids: list[int], size: int, salt: str | None, adapter: Adapter | None
) -> None:
    hasher = BlockHasher(algorithm=algorithm, block_size=size)
    assert list(hasher.hashes(ids, salt=salt, adapter=adapter)) == plain(digest, ids, size, salt, adapter)


@given(ids=IDS, size=st.integers(1, 20), cut=st.integers(0, 4), salt=SALTS)
def test_a_chain_can_be_continued_at_any_block(ids: list[int], size: int, cut: int, salt: str | None) -> None:
    hasher = BlockHasher(algorithm="sha256", block_size=size)
    out: list[int] = []
    last = hasher.extend(hasher.root, ids[: cut * size], out, salt=salt)
    hasher.extend(last, ids[cut * size :], out, salt=salt)
    assert out == list(hasher.hashes(ids, salt=salt))


def test_a_tail_shorter_than_a_block_is_not_hashed() -> None:
    hasher = BlockHasher(algorithm="sha256", block_size=16)
    assert not hasher.hashes(range(15))
    assert hasher.hashes(range(31)) == hasher.hashes(range(16))


def test_every_block_depends_on_the_salt() -> None:
    hasher = BlockHasher(algorithm="sha256", block_size=4)
    unsalted, one, two = (hasher.hashes(range(40), salt=salt) for salt in (None, "one", "two"))
    assert not set(unsalted) & set(one) and not set(one) & set(two)


def test_blocks_far_larger_than_a_pickle_frame_follow_the_formula() -> None:
    ids = list(range(1, 70_001))
    hasher = BlockHasher(algorithm="sha256", block_size=65_536)
    assert list(hasher.hashes(ids)) == plain(by_pickle, ids, 65_536, None, None)


@pytest.mark.parametrize("algorithm", ["xxhash", "builtin", "", "SHA256"])
def test_an_unknown_algorithm_is_refused_by_name(algorithm: str) -> None:
    with pytest.raises(UnknownHashAlgorithm, match=repr(algorithm)):
        BlockHasher(algorithm=algorithm, block_size=16)


@pytest.mark.parametrize("size", [0, -1, 65_537])
def test_a_block_size_out_of_bounds_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="block size"):
        BlockHasher(algorithm="sha256", block_size=size)


@pytest.mark.parametrize("algorithm", RECORDED)
def test_they_equal_the_hashes_in_recorded_events(algorithm: str) -> None:
    full: dict[tuple[str, int], bytes] = {}
    compared = 0
    for worker, event in stored_events(RECORDED[algorithm]):
        hasher = BlockHasher(algorithm=algorithm, block_size=event["block_size"])
        before = event["parent_block_hash"]
        parent = hasher.root if before is None else full.get((worker, low(before)))
        if parent is None:
            continue  # the recording begins in the middle of that chain
        extra = (event.get("extra_keys") or [None])[0]
        ids, size = event["token_ids"], event["block_size"]
        for number, told in enumerate(event["block_hashes"]):
            out: list[int] = []
            salt = extra[0] if extra and parent == hasher.root else None
            parent = hasher.extend(parent, ids[number * size : (number + 1) * size], out, salt=salt)
            assert out == [low(told)]
            full[worker, low(told)] = parent
            compared += 1
    assert compared >= 40


def stored_events(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    with gzip.open(path, "rt") as lines:
        for line in lines:
            message = json.loads(line)
            for event in message["batch"][1]:
                if event["type"] == "BlockStored":
                    yield message["worker"], event


def low(told: int | dict[str, str]) -> int:
    return told if isinstance(told, int) else int.from_bytes(bytes.fromhex(told["__bytes__"])[-8:])

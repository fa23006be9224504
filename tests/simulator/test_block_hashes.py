"""Block hashes equal those in events recorded from a real vLLM 0.32 worker."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from simulator.hashing import ROOT, BlockDigest, block_digest, event_hash, extend_chain

RECORDED = Path(__file__).parents[1] / "fixtures" / "vllm" / "kv_events_head.jsonl.gz"


@pytest.fixture(scope="module")
def recorded() -> list[dict[str, Any]]:
    with gzip.open(RECORDED) as lines:
        return [event for line in lines for event in json.loads(line)["batch"][1]]


def test_it_reproduces_every_recorded_hash(recorded: list[dict[str, Any]]) -> None:
    digests: dict[int | None, BlockDigest] = {None: ROOT}
    compared = salted = 0
    for event in recorded:
        if event["type"] != "BlockStored":
            continue
        parent = digests[event["parent_block_hash"]]
        size = event["block_size"]
        for index, recorded_hash in enumerate(event["block_hashes"]):
            ids = tuple(event["token_ids"][index * size : (index + 1) * size])
            salt = (event["extra_keys"][index] or [None])[0]
            parent = block_digest(parent, ids, salt)
            assert event_hash(parent) == recorded_hash
            digests[recorded_hash] = parent
            compared += 1
            salted += salt is not None
    assert compared > 500
    assert salted >= 5


def test_it_puts_the_salt_on_block_0_only() -> None:
    plain: list[BlockDigest] = []
    salted: list[BlockDigest] = []
    tokens = list(range(64))
    extend_chain(plain, tokens, block_size_tokens=32, salt=None)
    extend_chain(salted, tokens, block_size_tokens=32, salt="s")
    assert salted[0] != plain[0]
    assert salted[1] == block_digest(salted[0], tuple(tokens[32:]), None)


def test_it_leaves_a_tail_shorter_than_a_block_out() -> None:
    digests: list[BlockDigest] = []
    extend_chain(digests, list(range(63)), block_size_tokens=32, salt=None)
    assert len(digests) == 1

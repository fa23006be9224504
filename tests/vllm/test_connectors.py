"""The shared-storage example among vLLM's KV connectors, on real workers (docs/workers.md)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.isolation.canary_run import Subject, run_canaries
from tests.vllm.connectors import BLOCK_TOKENS, complete, text_of
from tests.vllm.special_workers import special_worker
from tests.vllm.worker_counters import counters_of, increases

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
NETWORKS = ("127.0.0.0/8",)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Two workers that store every prompt's KV in one folder and look there."""
    storage = _storage(tmp_path_factory.mktemp("kv"))
    with special_worker(3, storage) as first, special_worker(4, storage) as second:
        yield first, second


def _storage(folder: Path) -> str:
    config = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(folder)},
    }
    return "--kv-transfer-config " + json.dumps(config, separators=(",", ":"))


def test_a_worker_pulls_what_another_one_computed(pair: tuple[str, str]) -> None:
    first, second = pair
    before = counters_of(second)
    computed, tokens, cached = complete(first, text_of(1), salt="one")
    assert cached == 0
    pulled, _, cached = complete(second, text_of(1), salt="one")
    assert cached == (tokens - 2) // BLOCK_TOKENS * BLOCK_TOKENS
    assert pulled == computed
    assert increases(before, counters_of(second))["vllm:external_prefix_cache_hits_total"] == cached


def test_it_pulls_across_salts_and_the_canary_says_so(pair: tuple[str, str]) -> None:
    first, second = pair
    complete(first, text_of(2), salt="tenant-a")
    assert complete(second, text_of(2), salt="tenant-b")[2] > 0
    subject, asked = Subject(first, "tiny", BLOCK_TOKENS), ("chat", "completions")
    found = run_canaries(subject, networks=NETWORKS, endpoints=asked)
    assert {each.endpoint: each.judgement.verdict for each in found} == dict.fromkeys(asked, "red")

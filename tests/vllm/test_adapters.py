"""LoRA adapters on a real worker: their blocks have the hashes computed here, and nobody else hits them (C23)."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest
import zmq

from router.adapters.served_models import served_models
from router.adapters.tokenizer import Caller, ExactTokenizer
from router.adapters.tokenizer_files import load_model_files
from router.contract.ids import TenantId
from router.core.exact.block_hashes import Adapter, BlockHasher
from router.http.usage import Usage, read_usage
from tests.vllm.conftest import prompt_of
from tests.vllm.lora_files import write_adapter
from tests.vllm.special_workers import special_worker

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(500)]
BLOCK_SIZE = 32
REPLAY = "tcp://127.0.0.1:18203"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {name: write_adapter(folder / name, seed=seed) for seed, name in enumerate(("sql", "law"))}


@pytest.fixture(scope="module")
def worker(folders: dict[str, Path]) -> Iterator[str]:
    modules = [f"{name}={folder}" for name, folder in folders.items()]
    with special_worker(
        3, "--enable-lora", "--max-lora-rank", "8", "--max-loras", "2", "--lora-modules", *modules
    ) as url:
        yield url


@pytest.fixture
def exact() -> Iterator[ExactTokenizer]:
    model = Path(os.environ.get("VLLM_LAB") or Path.home() / ".cache" / "vllm-lab") / "model"
    hasher = BlockHasher(algorithm="sha256", block_size=BLOCK_SIZE)
    tokenizer = ExactTokenizer(load_model_files(model), hasher=hasher, secret=bytes(32))
    yield tokenizer
    tokenizer.close()


def ask(url: str, model: str, prompt: str, salt: str) -> Usage:
    body = {"model": model, "prompt": prompt, "cache_salt": salt, "max_tokens": 1}
    return read_usage(httpx.post(f"{url}/v1/completions", json=body, timeout=60).raise_for_status().content)


def stored() -> set[int]:
    """Every block hash that the worker has told of."""
    found: set[int] = set()
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.rcvtimeo = 10_000
        dealer.connect(REPLAY)
        dealer.send_multipart([b"", (0).to_bytes(8, "big")])
        while True:
            *_, seq, payload = dealer.recv_multipart()
            if seq == b"\xff" * 8:
                return found
            for event in msgspec.msgpack.decode(payload)[1]:
                if event["type"] == "BlockStored":
                    found.update(event["block_hashes"])


async def test_its_models_are_told_apart(worker: str, folders: dict[str, Path]) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        found = await served_models(client, worker, headers={})
    assert found == {"tiny": None} | {name: Adapter(name, str(folder)) for name, folder in folders.items()}


async def test_blocks_of_each_adapter_have_hashes_of_their_own(
    worker: str, folders: dict[str, Path], exact: ExactTokenizer
) -> None:
    prompt, salt = prompt_of(300, seed=4), uuid.uuid4().hex
    seen: set[int] = set()
    for model in ("tiny", "sql", "law"):
        adapter = Adapter(model, str(folders[model])) if model in folders else None
        prefix = await exact.fingerprint(Caller(TenantId("acme"), salt, adapter), {"prompt": prompt}, chat=False)
        assert ask(worker, model, prompt, salt).cached_tokens == 0, "what others computed is not hit"
        assert ask(worker, model, prompt, salt).cached_tokens == prefix.hittable_blocks * BLOCK_SIZE > 0
        assert seen.isdisjoint(prefix.hashes) and stored().issuperset(prefix.hashes)
        seen.update(prefix.hashes)

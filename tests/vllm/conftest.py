"""Two real vLLM CPU workers (started by `make test-vllm`) behind one Tidemark, onboarded through the REST API."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest

from tests.installation import Installation, Operator, answers, wait_until

WORKER_URLS = ("http://127.0.0.1:18001", "http://127.0.0.1:18002")
REPLAY_ENDPOINTS = ("tcp://127.0.0.1:18201", "tcp://127.0.0.1:18202")
WORDS = [
    "import",
    "return",
    "value",
    "range",
    "print",
    "class",
    "except",
    "path",
    "False",
    "None",
    "while",
    "yield",
    "lambda",
    "with",
    "global",
    "assert",
]


@dataclass
class Tenancy:
    """Alice and Bob share a namespace of one tenant; Charlie belongs to another tenant."""

    alice: str
    bob: str
    charlie: str


@pytest.fixture(scope="session")
def workers() -> tuple[str, ...]:
    missing = [url for url in WORKER_URLS if not answers(f"{url}/health")]
    if missing:
        pytest.fail(f"no vLLM worker at {', '.join(missing)}: run these tests with `make test-vllm`")
    return WORKER_URLS


@pytest.fixture(scope="module")
def stack(workers: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    stack = Installation(tmp_path_factory.mktemp("vllm"))
    # Holds the lab's model in its folder `model`.
    lab = os.environ.get("VLLM_LAB") or str(Path.home() / ".cache" / "vllm-lab")
    stack.start(environment={"TIDEMARK_ROUTER_TOKENIZER_DIR": lab})
    try:
        stack.wait_until_serving()
        yield stack
    finally:
        stack.end()


@pytest.fixture(scope="module")
def operator(stack: Installation) -> Operator:
    return Operator(stack)


@pytest.fixture(scope="module")
def fleet(operator: Operator, workers: tuple[str, ...]) -> list[dict[str, object]]:
    """The pool `tiny` with both workers, each live-tested; the answers of the tests."""
    operator.post("pools", {"id": "tiny", "name": "Tiny", "block_size": 32, "models": ["tiny"]})
    reports = []
    for number, url in enumerate(workers, start=1):
        operator.post("workers", {"pool": "tiny", "slug": f"w{number}", "url": url})
        reports.append(operator.post(f"workers/tiny/w{number}/test", {}))
    return reports


@pytest.fixture(scope="module")
def tenancy(operator: Operator, fleet: object, stack: Installation) -> Tenancy:
    keys = {}
    for tenant, people in (("acme", ("alice", "bob")), ("globex", ("charlie",))):
        operator.post("tenants", {"id": tenant, "name": tenant.title()})
        operator.post("namespaces", {"tenant": tenant, "slug": "chat", "ttft_slo_ms": 2000})
        for person in people:
            keys[person] = operator.post("keys", {"namespace": f"{tenant}/chat", "name": person})["key"]
    tenancy = Tenancy(**keys)
    wait_until(lambda: _serves(stack, tenancy.charlie), within_s=15, what="the router knows the last key")
    return tenancy


def _serves(stack: Installation, key: str) -> bool:
    try:
        return any(model.id == "tiny" for model in client_for(stack, key).models.list())
    except openai.OpenAIError:
        return False


def client_for(stack: Installation, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{stack.router}/v1", api_key=key, max_retries=0, timeout=60)


def prompt_of(tokens: int, *, seed: int) -> str:
    """Text of about `tokens` tokens of the lab's tokenizer, different from its first word for each seed."""
    draw = random.Random(seed)
    return f"{seed} {time.time_ns()} " + " ".join(draw.choice(WORDS) for _ in range(tokens))

"""What the tests of KV connectors ask workers, and read of them."""

from __future__ import annotations

import random

import httpx

from controlplane.fleet.metrics_page import read_metrics_page
from tests.vllm.conftest import WORDS

BLOCK_TOKENS = 32


def complete(url: str, prompt: str, *, salt: str, **more: object) -> tuple[str, int, int]:
    """(answer, prompt tokens, cached tokens)."""
    body = {"model": "tiny", "prompt": prompt, "cache_salt": salt, "max_tokens": 6, "temperature": 0, **more}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60).raise_for_status().json()
    usage = answer["usage"]
    return answer["choices"][0]["text"], usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def offered(url: str, prompt: str, *, salt: str) -> dict[str, object]:
    """What another worker needs to pull the prompt's KV from this one, by NIXL."""
    body = {"model": "tiny", "prompt": prompt, "cache_salt": salt, "max_tokens": 1, "temperature": 0}
    body["kv_transfer_params"] = {"do_remote_decode": True, "do_remote_prefill": False}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60).raise_for_status().json()
    return dict(answer["kv_transfer_params"])


def text_of(seed: int) -> str:
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) for _ in range(900))


def page_counters(url: str) -> dict[str, float]:
    """As Tidemark's own polls read them."""
    return read_metrics_page(httpx.get(f"{url}/metrics", timeout=10).text).counters

"""Sends a plan to workers that answer in vLLM's way, and notes what each request hit and how long it took."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import httpx
import msgspec

from simulator.fleet.calibrate_metrics import Page, read_page
from simulator.fleet.validate import ANSWER_TOKENS, Asked, Group, Served, WorkerFacts

TIMEOUT_S = 300.0
LINE_PREFIX = "data: "
RESERVED_BLOCKS = 1
"""vLLM keeps one for its own use."""


class ValidationError(Exception):
    """A worker does not answer what the comparison needs; the message says what."""


async def facts_of(client: httpx.AsyncClient, url: str, *, batch_tokens: int) -> WorkerFacts:
    """Raises ValidationError."""
    page: Page = read_page((await client.get(f"{url}/metrics")).text)
    config = page.info("vllm:cache_config_info")
    models = (await client.get(f"{url}/v1/models")).json()
    try:
        block_tokens, blocks = int(config["block_size"]), int(config["num_gpu_blocks"])
        prompt_tokens_max = int(models["data"][0]["max_model_len"]) - 2 * ANSWER_TOKENS
    except (KeyError, ValueError, IndexError, TypeError):
        raise ValidationError(f"{url} does not tell its block size, blocks and longest prompt") from None
    kv_blocks = blocks - RESERVED_BLOCKS
    return WorkerFacts(block_tokens, kv_blocks, min(prompt_tokens_max, kv_blocks * block_tokens), batch_tokens)


async def ask_all(
    client: httpx.AsyncClient, urls: Sequence[str], model: str, groups: Sequence[Group]
) -> list[list[Served]]:
    """Group by group; fills in each request's prompt and answer. Raises ValidationError."""
    said: dict[int, tuple[int, ...]] = {}
    found = []
    for group in groups:
        for asked in group:
            asked.prompt = said.get(asked.conversation, ()) + asked.fresh
        found.append(await asyncio.gather(*(_ask(client, urls[asked.worker], model, asked) for asked in group)))
        for asked in group:
            said[asked.conversation] = asked.prompt + asked.answer
    return found


async def _ask(client: httpx.AsyncClient, url: str, model: str, asked: Asked) -> Served:
    body = {
        "model": model,
        "prompt": list(asked.prompt),
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
    answer: list[int] = []
    text = ""
    usage: dict[str, Any] = {}  # Any: JSON
    began = time.perf_counter()
    at: list[float] = []
    async with client.stream("POST", f"{url}/v1/completions", json=body, timeout=TIMEOUT_S) as response:
        if response.status_code != 200:
            raise ValidationError(f"{url} answered {response.status_code}: {(await response.aread())[:300]!r}")
        async for line in response.aiter_lines():
            if not line.startswith(LINE_PREFIX) or line.endswith("[DONE]"):
                continue
            chunk = msgspec.json.decode(line.removeprefix(LINE_PREFIX))
            for choice in chunk.get("choices", ()):
                at.append(time.perf_counter())
                answer += choice.get("token_ids") or ()
                text += choice.get("text") or ""
            usage = chunk.get("usage") or usage
    asked.answer = tuple(answer or await _tokens_of(client, url, model, text))
    return _served(url, usage, [moment - began for moment in at], len(asked.answer))


async def _tokens_of(client: httpx.AsyncClient, url: str, model: str, text: str) -> list[int]:
    """Of a worker that does not tell the ids of what it said."""
    answer = await client.post(f"{url}/tokenize", json={"model": model, "prompt": text})
    tokens: list[int] = answer.json()["tokens"]
    return tokens


def _served(url: str, usage: dict[str, Any], at_s: Sequence[float], answer_tokens: int) -> Served:
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    if cached is None or not at_s:
        raise ValidationError(f"{url} does not tell cached tokens: start it with --enable-prompt-tokens-details")
    step_s = (at_s[-1] - at_s[0]) / (answer_tokens - 1) if answer_tokens > 1 and len(at_s) > 1 else None
    return Served(cached, at_s[0], step_s)

"""Two versions of a template on a real worker: the cached tokens are those that the comparison predicts."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from controlplane.prompts.divergence import divergence
from controlplane.prompts.rendering import render
from controlplane.prompts.segments import Segment
from controlplane.prompts.tokens import TokenCounter
from tests.vllm.conftest import prompt_of

BLOCK_SIZE = 32
"""Of the lab's workers."""
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

VALUES: dict[str, Any] = {
    "tools": [{"name": "b", "input_schema": {}}, {"name": "a", "input_schema": {}}],
    "question": "go on",
}


@pytest.fixture(scope="module")
def counter() -> TokenCounter:
    lab = Path(os.environ.get("VLLM_LAB") or Path.home() / ".cache" / "vllm-lab")
    return TokenCounter(BLOCK_SIZE, Tokenizer.from_file(str(lab / "model" / "tokenizer.json")), "lab")


def _version(*static: str) -> list[Segment]:
    return [
        *(Segment(kind="static", name=f"s{number}", text=text) for number, text in enumerate(static)),
        Segment(kind="semi_static", name="tools", text="{tools}"),
        Segment(kind="dynamic", name="question", text="{question}"),
    ]


RULES, MORE = prompt_of(300, seed=31), prompt_of(200, seed=32)
CHANGES = {
    "nothing": (_version(RULES, MORE), _version(RULES, MORE)),
    "the first word": (_version(RULES, MORE), _version("class " + RULES, MORE)),
    "a word in the middle": (_version(RULES, MORE), _version(RULES, "while " + MORE)),
    "the end of the static part": (_version(RULES, MORE), _version(RULES, MORE + " yield")),
    "a segment more": (_version(RULES, MORE), _version(RULES, MORE, prompt_of(60, seed=33))),
    "a segment less": (_version(RULES, MORE), _version(RULES)),
    "white space": (_version(RULES, MORE), _version(RULES, MORE + " ")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_predicted_cached_tokens_are_delivered(
    workers: tuple[str, ...], counter: TokenCounter, change: str
) -> None:
    salt = secrets.token_urlsafe(32)
    old, new = (render(version, VALUES).text for version in CHANGES[change])
    _ask(workers[0], old, salt)
    prompt_tokens, cached = _ask(workers[0], new, salt)
    found = divergence(old, new, counter)
    assert prompt_tokens == found.new_tokens, "the tokens are the worker's own"
    assert cached == found.cached_tokens_kept
    if found.first_divergent_block is not None:
        assert found.first_divergent_block == cached // BLOCK_SIZE


def test_tools_in_another_order_share_everything_once_rendered(workers: tuple[str, ...]) -> None:
    salt = secrets.token_urlsafe(32)
    version = _version(RULES)
    turned = VALUES | {"tools": list(reversed(VALUES["tools"]))}
    first, second = render(version, VALUES).text, render(version, turned).text
    tokens, _ = _ask(workers[0], first, salt)
    _, cached = _ask(workers[0], second, salt)
    assert cached == (tokens - 1) // BLOCK_SIZE * BLOCK_SIZE


def _ask(url: str, prompt: str, salt: str) -> tuple[int, int]:
    """(prompt tokens, cached tokens) of a completion."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 1, "temperature": 0, "cache_salt": salt}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60, trust_env=False)
    answer.raise_for_status()
    usage = answer.json()["usage"]
    return usage["prompt_tokens"], int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)

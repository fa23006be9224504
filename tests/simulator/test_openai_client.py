"""The official Python client works against the worker."""

from __future__ import annotations

import openai
import pytest

from tests.simulator.conftest import LiveWorker


@pytest.fixture
async def client(worker: LiveWorker) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{worker.url}/v1", api_key="unused", max_retries=0)


async def test_it_completes_chats(client: openai.AsyncOpenAI) -> None:
    async with client:
        answer = await client.chat.completions.create(
            model="sim-llama", messages=[{"role": "user", "content": "hello"}], max_tokens=5
        )
    assert answer.choices[0].message.content
    assert answer.usage is not None and answer.usage.completion_tokens == 5


async def test_it_streams_chats_with_usage(client: openai.AsyncOpenAI) -> None:
    async with client:
        stream = await client.chat.completions.create(
            model="sim-llama",
            messages=[{"role": "user", "content": "hello"}],
            max_tokens=5,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"cache_salt": "abc"},
        )
        parts = [part async for part in stream]
    assert len("".join(part.choices[0].delta.content or "" for part in parts if part.choices)) == 20
    assert parts[-1].usage is not None and parts[-1].usage.completion_tokens == 5


async def test_it_completes_text_and_lists_models(client: openai.AsyncOpenAI) -> None:
    async with client:
        answer = await client.completions.create(model="sim-llama", prompt="once upon", max_tokens=3)
        models = [model.id async for model in client.models.list()]
    assert answer.choices[0].finish_reason == "length"
    assert models == ["sim-llama"]


async def test_it_raises_the_clients_own_errors(client: openai.AsyncOpenAI) -> None:
    async with client:
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            await client.completions.create(model="nope", prompt="x")
        with pytest.raises(openai.BadRequestError) as caught:
            await client.completions.create(model="sim-llama", prompt="x", extra_body={"cache_salt": ""})
    assert caught.value.param == "cache_salt"

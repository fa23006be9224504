"""The official client works unchanged: chat, completions, streaming, models, errors."""

from __future__ import annotations

import openai
import pytest
import pytest_asyncio

from tests.router.conftest import ALICE_KEY, RunningRouter
from tests.router.scripted_worker import (
    DONE,
    STREAM_HEAD,
    ScriptedWorker,
    answer_json,
    chunk,
    event,
    raw,
    stream,
    usage_event,
)

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest_asyncio.fixture
async def client(router: RunningRouter):
    async with openai.AsyncOpenAI(base_url=router.url + "/v1", api_key=ALICE_KEY, max_retries=0) as made:
        yield made


async def test_it_chats(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="m", messages=MESSAGES, extra_body={"top_k": 5})
    assert answer.choices[0].message.content == "hello"
    assert answer.usage.prompt_tokens_details.cached_tokens == 64


async def test_it_streams(client: openai.AsyncOpenAI, worker: ScriptedWorker) -> None:
    worker.script = stream(event("a"), event("b"), usage_event(), DONE)
    parts = [part async for part in await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)]
    assert [part.choices[0].delta.content for part in parts] == ["a", "b"]


async def test_it_streams_with_usage(client: openai.AsyncOpenAI, worker: ScriptedWorker) -> None:
    worker.script = stream(event("a"), usage_event(), DONE)
    answer = await client.chat.completions.create(
        model="m", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    assert [part async for part in answer][-1].usage.prompt_tokens == 100


async def test_it_completes_text(client: openai.AsyncOpenAI, worker: ScriptedWorker) -> None:
    choice = {"index": 0, "text": "x", "logprobs": None, "finish_reason": "stop"}
    worker.script = answer_json(
        {"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [choice], "usage": None}
    )
    assert (await client.completions.create(model="m", prompt="p")).choices[0].text == "x"


async def test_it_lists_models(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["m"]


async def test_it_raises_the_matching_errors(client: openai.AsyncOpenAI, worker: ScriptedWorker) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        await client.chat.completions.create(model="nobody", messages=MESSAGES)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError):
        await client.chat.completions.create(model="m", messages=[])
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="wrong").chat.completions.create(model="m", messages=MESSAGES)
    worker.script = answer_json({"error": "x"}, status=500)
    with pytest.raises(openai.InternalServerError):
        await client.chat.completions.create(model="m", messages=MESSAGES)


async def test_it_raises_when_a_stream_breaks_off(client: openai.AsyncOpenAI, worker: ScriptedWorker) -> None:
    worker.script = raw(STREAM_HEAD + chunk(event("a")), pause_s=0.05)
    seen = []
    with pytest.raises(openai.APIError):
        async for part in await client.chat.completions.create(model="m", messages=MESSAGES, stream=True):
            seen.append(part.choices[0].delta.content)
    assert seen == ["a"]

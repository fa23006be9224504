"""The official client's responses and embeddings, and messages over plain HTTP, to a simulated worker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import openai
import pytest_asyncio

from router.contract.snapshot import PoolPolicy
from tests.router.conftest import ALICE_KEY, CHARLIE_KEY, RunningRouter, StartRouter, snapshot_for
from tests.simulator.conftest import LiveWorker, StartWorker, start_worker  # noqa: F401 - fixture

LONG = "".join(f"{number} words of a long prompt. " for number in range(200))


@pytest_asyncio.fixture
async def sim(start_worker: StartWorker) -> LiveWorker:  # noqa: F811 - the imported fixture
    return await start_worker(time_scale=50.0)


@pytest_asyncio.fixture
async def router(start_router: StartRouter, sim: LiveWorker) -> RunningRouter:
    snapshot = snapshot_for([sim.url])
    pools = {"p": PoolPolicy(models=("sim-llama",))}
    return await start_router(msgspec.structs.replace(snapshot, pools=pools))


@pytest_asyncio.fixture
async def client(router: RunningRouter) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key=ALICE_KEY, max_retries=0) as made:
        yield made


async def test_it_answers_responses(client: openai.AsyncOpenAI) -> None:
    asked: dict[str, Any] = {"model": "sim-llama", "input": LONG, "instructions": "Be brief.", "max_output_tokens": 6}
    first = await client.responses.create(**asked)
    again = await client.responses.create(**asked)
    assert first.output_text == again.output_text != ""
    assert first.usage is not None and again.usage is not None
    assert first.usage.input_tokens_details.cached_tokens == 0 < again.usage.input_tokens_details.cached_tokens


async def test_it_streams_responses_to_the_end(client: openai.AsyncOpenAI) -> None:
    stream = await client.responses.create(model="sim-llama", input="hi", max_output_tokens=6, stream=True)
    events = [event async for event in stream]
    assert [event.type for event in events][:2] == ["response.created", "response.in_progress"]
    assert events[-1].type == "response.completed" and events[-1].response.usage is not None


async def test_it_reports_a_stream_that_died_as_an_error_event(client: openai.AsyncOpenAI, sim: LiveWorker) -> None:
    await sim.fault(die_mid_stream=1.0)
    stream = await client.responses.create(model="sim-llama", input="hi", max_output_tokens=20, stream=True)
    events = [event async for event in stream]
    assert events[-1].type == "error" and not any(event.type == "response.completed" for event in events)


async def test_it_embeds(client: openai.AsyncOpenAI) -> None:
    found = await client.embeddings.create(model="sim-llama", input=["a b c", "d e f"], encoding_format="float")
    assert len(found.data) == 2 and found.data[0].embedding != found.data[1].embedding
    assert found.usage.prompt_tokens > 0


async def test_it_keeps_namespaces_apart_on_every_endpoint(router: RunningRouter) -> None:
    body = {"model": "sim-llama", "max_tokens": 4, "messages": [{"role": "user", "content": LONG}]}
    hits = []
    for key in (ALICE_KEY, ALICE_KEY, CHARLIE_KEY):
        answer = await router.post(body, path="/v1/messages", key=key)
        assert answer.status_code == 200, answer.text
        hits.append(answer.json()["usage"]["cache_read_input_tokens"])
    assert hits[0] == hits[2] == 0 < hits[1]
    responses = await router.post({"model": "sim-llama", "input": LONG, "max_output_tokens": 4}, path="/v1/responses")
    assert responses.json()["usage"]["input_tokens_details"]["cached_tokens"] == hits[1]


async def test_it_streams_messages_to_the_end(router: RunningRouter) -> None:
    body = {"model": "sim-llama", "max_tokens": 6, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    answer = await router.post(body, path="/v1/messages")
    names = [line.removeprefix("event: ") for line in answer.text.splitlines() if line.startswith("event: ")]
    assert names[0] == "message_start" and names[-2:] == ["message_delta", "message_stop"]
    router.runtime.telemetry.close_second(0)
    assert router.runtime.telemetry.totals.requests == {("sim-llama", "acme", "ok"): 1}

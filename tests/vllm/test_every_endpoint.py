"""On a real worker every endpoint takes our salt, keeps namespaces apart, and tells its usage (S2, S7).

A worker generates or embeds, not both: embeddings are checked where TIDEMARK_TEST_EMBEDDER names one that embeds
(`vllm serve … --runner pooling --convert embed`).
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import openai
import pytest
import pytest_asyncio

from router.contract.snapshot import PoolPolicy
from tests.router.conftest import ALICE_KEY, CHARLIE_KEY, RunningRouter, snapshot_for, start_router  # noqa: F401 - fixture
from tests.vllm.conftest import WORKER_URLS, prompt_of

pytestmark = pytest.mark.vllm
EMBEDDER = os.environ.get("TIDEMARK_TEST_EMBEDDER", "")


def _snapshot(url: str) -> Any:
    snapshot = snapshot_for([url])
    return msgspec.structs.replace(snapshot, pools={"p": PoolPolicy(models=("tiny",), block_size=32)})


@pytest_asyncio.fixture
async def router(start_router: Any) -> AsyncIterator[RunningRouter]:  # noqa: F811 - the imported fixture
    yield await start_router(_snapshot(WORKER_URLS[0]))


def request_for(path: str, text: str) -> dict[str, Any]:
    if path == "/v1/responses":
        return {"model": "tiny", "input": text, "max_output_tokens": 4}
    messages = [{"role": "user", "content": text}]
    return {"model": "tiny", "messages": messages, "max_tokens": 4}


def cached(path: str, usage: dict[str, Any]) -> int:
    if path == "/v1/messages":
        return int(usage["cache_read_input_tokens"])
    return int(usage["input_tokens_details" if path == "/v1/responses" else "prompt_tokens_details"]["cached_tokens"])


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
async def test_it_keeps_namespaces_apart(router: RunningRouter, path: str) -> None:
    body = request_for(path, prompt_of(200, seed=len(path)))
    hits = []
    for key in (ALICE_KEY, ALICE_KEY, CHARLIE_KEY, CHARLIE_KEY):
        answer = await router.post(body, path=path, key=key)
        assert answer.status_code == 200, answer.text
        hits.append(cached(path, answer.json()["usage"]))
    assert hits[0] == hits[2] == 0 and hits[1] == hits[3] > 100


async def test_it_finds_a_conversation_again_on_another_endpoint(router: RunningRouter) -> None:
    text = prompt_of(200, seed=77)
    await router.post(request_for("/v1/chat/completions", text))
    for path in ("/v1/messages", "/v1/responses"):
        answer = await router.post(request_for(path, text), path=path)
        assert cached(path, answer.json()["usage"]) > 100
    router.runtime.telemetry.close_second(0)
    totals = router.runtime.telemetry.totals
    assert totals.violations == 0 and totals.predicted_hit_tokens["tiny", "acme"] > 0


@pytest.mark.parametrize(("path", "end"), [("/v1/messages", b"message_stop"), ("/v1/responses", b"response.completed")])
async def test_it_streams_to_the_end_mark_and_counts(router: RunningRouter, path: str, end: bytes) -> None:
    answer = await router.post({**request_for(path, prompt_of(60, seed=3)), "stream": True}, path=path)
    assert answer.content.rstrip().rpartition(b"event: ")[2].startswith(end)
    router.runtime.telemetry.close_second(0)
    totals = router.runtime.telemetry.totals
    assert totals.requests == {("tiny", "acme", "ok"): 1} and totals.query_tokens["tiny", "acme"] > 50
    assert sum(sum(buckets.values()) for buckets in totals.ttft_ms.values()) == 1


async def test_it_serves_the_official_client(router: RunningRouter) -> None:
    async with openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key=ALICE_KEY, max_retries=0) as client:
        answer = await client.responses.create(
            model="tiny", input="hello", instructions="Be brief.", max_output_tokens=4
        )
        assert answer.output_text and answer.usage is not None and answer.usage.output_tokens == 4
        kinds = [
            each.type
            async for each in await client.responses.create(model="tiny", input="a", max_output_tokens=4, stream=True)
        ]
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")


async def test_it_says_so_where_the_model_does_not_embed(router: RunningRouter) -> None:
    answer = await router.post({"model": "tiny", "input": "a"}, path="/v1/embeddings")
    assert (answer.status_code, answer.json()["error"]["code"]) == (501, "endpoint_not_offered")


@pytest.mark.skipif(not EMBEDDER, reason="TIDEMARK_TEST_EMBEDDER names no worker that embeds")
async def test_it_keeps_namespaces_apart_in_embeddings(start_router: Any) -> None:  # noqa: F811 - the imported fixture
    router = await start_router(_snapshot(EMBEDDER))
    body = {"model": "tiny", "input": prompt_of(200, seed=9)}
    hits = [await _hits()]
    for key in (ALICE_KEY, ALICE_KEY, CHARLIE_KEY, CHARLIE_KEY):
        answer = await router.post(body, path="/v1/embeddings", key=key)
        assert answer.status_code == 200 and answer.json()["data"][0]["embedding"], answer.text[:300]
        hits.append(await _hits())
    grown = [after - before for before, after in itertools.pairwise(hits)]
    assert grown[0] == grown[2] == 0 and grown[1] == grown[3] > 100
    async with openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key=ALICE_KEY, max_retries=0) as client:
        found = await client.embeddings.create(model="tiny", input=["a", "b"])
    assert len(found.data) == 2 and json.dumps(found.data[0].embedding) != json.dumps(found.data[1].embedding)


async def _hits() -> float:
    """The worker's own count of cached tokens: embeddings do not tell it."""
    async with httpx.AsyncClient(trust_env=False) as client:
        page = (await client.get(f"{EMBEDDER}/metrics")).text
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith("vllm:prefix_cache_hits_total"))

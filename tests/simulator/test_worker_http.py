"""Requests and answers, in the shapes recorded from a real worker."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from simulator.engine import EngineLimits
from tests.simulator.conftest import LiveWorker, StartWorker

LONG = "a system prompt that is long enough for many blocks of sixteen tokens " * 20


async def completion(worker: LiveWorker, **fields: Any) -> httpx.Response:
    return await worker.http.post("/v1/completions", json={"model": "sim-llama", "max_tokens": 4} | fields)


def chunks(text: str) -> list[dict[str, Any]]:
    lines = [line for line in text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


async def test_it_reports_cached_tokens_on_a_repeat(worker: LiveWorker) -> None:
    assert await worker.cached_tokens(LONG) == 0
    usage = (await worker.chat(LONG)).json()["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert cached == usage["prompt_tokens"] // 16 * 16
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] == usage["prompt_tokens"] + 4


async def test_it_says_null_without_prompt_tokens_details(start_worker: StartWorker) -> None:
    worker = await start_worker(prompt_tokens_details=False)
    assert (await worker.chat(LONG)).json()["usage"]["prompt_tokens_details"] is None


async def test_it_streams_text_and_then_usage(worker: LiveWorker) -> None:
    whole = (await worker.chat(LONG)).json()
    response = await worker.chat(LONG, stream=True, stream_options={"include_usage": True})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    first, *texts, last = chunks(response.text)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    spoken = "".join(chunk["choices"][0]["delta"]["content"] for chunk in texts)
    assert spoken == whole["choices"][0]["message"]["content"]
    assert texts[-1]["choices"][0]["finish_reason"] == "length"
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


async def test_it_streams_no_usage_unless_asked(worker: LiveWorker) -> None:
    response = await completion(worker, prompt="hello", stream=True)
    assert all("usage" not in chunk for chunk in chunks(response.text))


async def test_it_groups_tokens_by_the_stream_interval(start_worker: StartWorker) -> None:
    worker = await start_worker(stream_interval_tokens=5)
    response = await completion(worker, prompt="hello", stream=True, max_tokens=12)
    counts = [len(chunk["choices"][0]["text"]) // 4 for chunk in chunks(response.text)]
    assert counts == [1, 5, 5, 1]


async def test_it_stops_by_itself_when_no_length_is_asked(worker: LiveWorker) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    answer = (await worker.http.post("/v1/chat/completions", json=body)).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 128


@pytest.mark.parametrize("prompt", ["text", ["one", "two"], [5, 6, 7], [[5, 6], [7, 8]]])
async def test_it_takes_prompts_as_text_list_and_ids(worker: LiveWorker, prompt: object) -> None:
    answer = (await completion(worker, prompt=prompt, n=2)).raise_for_status().json()
    prompts = 2 if isinstance(prompt, list) and isinstance(prompt[0], str | list) else 1
    assert [choice["index"] for choice in answer["choices"]] == list(range(2 * prompts))
    assert answer["usage"]["completion_tokens"] == 8 * prompts


async def test_it_isolates_by_cache_salt(worker: LiveWorker) -> None:
    assert await worker.cached_tokens(LONG, cache_salt="tenant-a") == 0
    assert await worker.cached_tokens(LONG, cache_salt="tenant-b") == 0
    assert await worker.cached_tokens(LONG, cache_salt=None) == 0
    assert await worker.cached_tokens(LONG, cache_salt="tenant-a") > 0


async def test_it_refuses_bad_salts_without_repeating_them(worker: LiveWorker) -> None:
    for salt in ("", 5, ["x"], {"a": 1}, "x" * 129, "a/b", "a@b", "a\\b", "a\0b"):
        response = await worker.chat("hello", cache_salt=salt)
        error = response.json()["error"]
        assert (response.status_code, error["param"], error["type"]) == (400, "cache_salt", "BadRequestError"), salt
        if isinstance(salt, str) and len(salt) > 1:
            assert salt not in error["message"]


async def test_it_takes_good_salts(worker: LiveWorker) -> None:
    for salt in (" ", "x" * 128, "under_score-dash"):
        assert (await worker.chat("hello", cache_salt=salt)).status_code == 200


BAD_REQUESTS: list[tuple[str, object, int, str | None]] = [
    ("/v1/completions", {"model": "nope", "prompt": "x"}, 404, "model"),
    ("/v1/chat/completions", {"model": "nope", "messages": [{"role": "user", "content": "x"}]}, 404, "model"),
    ("/v1/completions", {"prompt": "x", "max_tokens": "abc"}, 400, "body.max_tokens"),
    ("/v1/completions", {"prompt": "x", "max_tokens": 0}, 400, "max_tokens"),
    ("/v1/completions", {"prompt": ""}, 400, "prompt"),
    ("/v1/completions", {"prompt": [999_999]}, 400, None),
    ("/v1/completions", {"prompt": [[]]}, 400, "body.prompt"),
    ("/v1/completions", {"prompt": {"a": 1}}, 400, "body.prompt"),
    ("/v1/completions", [], 400, "body"),
    ("/v1/chat/completions", {}, 400, "body.messages"),
    ("/v1/chat/completions", {"messages": [{"role": "nobody", "content": "x"}]}, 400, "body.messages.role"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": 5}]}, 400, "messages"),
]


async def test_it_refuses_bad_requests_in_the_recorded_shape(worker: LiveWorker) -> None:
    for path, body, status, param in BAD_REQUESTS:
        response = await worker.http.post(path, json=body)
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["param"]) == (status, status, param), body
        assert set(error) == {"message", "type", "param", "code"}


async def test_it_refuses_what_is_not_json(worker: LiveWorker) -> None:
    headers = {"content-type": "application/json"}
    assert (await worker.http.post("/v1/completions", content=b"{nope", headers=headers)).status_code == 400
    text = {"content-type": "text/plain"}
    assert (await worker.http.post("/v1/completions", content=b'{"prompt":"x"}', headers=text)).status_code == 400


async def test_it_refuses_prompts_beyond_the_context_and_clamps_the_answer(start_worker: StartWorker) -> None:
    worker = await start_worker(limits=EngineLimits(max_model_len=64))
    response = await completion(worker, prompt="x" * 400)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "input_tokens")
    answer = (await completion(worker, prompt="x" * 200, max_tokens=1000)).json()
    assert answer["usage"]["total_tokens"] == 64


async def test_it_refuses_above_its_queue_limit(start_worker: StartWorker) -> None:
    worker = await start_worker(limits=EngineLimits(max_num_seqs=1), max_num_queued_reqs=1, time_scale=1.0)
    first = asyncio.create_task(worker.chat("one", max_tokens=60))
    await asyncio.sleep(0.1)
    second = asyncio.create_task(worker.chat("two", max_tokens=1))
    await asyncio.sleep(0.1)
    refused = await worker.chat("three")
    assert refused.status_code == 503
    assert "retry-after" not in refused.headers
    assert (await worker.http.get("/load")).json() == {"server_load": 2}
    assert [(await task).status_code for task in (first, second)] == [200, 200]


async def test_it_frees_the_blocks_of_a_client_that_left(start_worker: StartWorker) -> None:
    worker = await start_worker(time_scale=1.0)
    with pytest.raises(httpx.ReadTimeout):
        await worker.http.post(
            "/v1/completions", json={"prompt": LONG, "max_tokens": 2000}, timeout=httpx.Timeout(5, read=0.3)
        )
    for _ in range(40):
        await asyncio.sleep(0.05)
        if not worker.app.engine.running:
            break
    assert worker.app.engine.running == []
    assert worker.app.engine.cache.pinned_share == 0.0
    assert (await worker.http.get("/load")).json() == {"server_load": 0}


async def test_it_echoes_the_request_id(worker: LiveWorker) -> None:
    response = await worker.http.post("/v1/completions", json={"prompt": "x"}, headers={"x-request-id": "rid-123"})
    assert response.headers["x-request-id"] == "rid-123"
    assert response.json()["id"] == "cmpl-rid-123"
    assert len((await worker.http.get("/health")).headers["x-request-id"]) == 32


async def test_it_guards_only_v1_by_its_api_key(start_worker: StartWorker) -> None:
    worker = await start_worker(api_key="k1")
    refused = await worker.chat("x")
    assert (refused.status_code, refused.json()) == (401, {"error": "Unauthorized"})
    allowed = await worker.http.get("/v1/models", headers={"authorization": "Bearer k1"})
    assert allowed.status_code == 200
    assert (await worker.http.get("/metrics")).status_code == 200


async def test_it_answers_the_small_endpoints(worker: LiveWorker) -> None:
    get = worker.http.get
    assert (await get("/version")).json() == {"version": "0.32.0"}
    assert (await get("/health")).content == (await get("/ping")).content == b""
    (card,) = (await get("/v1/models")).json()["data"]
    assert (card["id"], card["max_model_len"], card["owned_by"]) == ("sim-llama", 131_072, "vllm")
    source = (await get("/kv_event_sources")).json()["0"]
    assert source["topic"] == "kv@w1@sim-llama" and source["buffer_steps"] == 10_000
    assert (await get("/nope")).status_code == 404
    assert (await get("/reset_prefix_cache")).status_code == 405


async def test_it_tokenizes_as_it_counts(worker: LiveWorker) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": LONG}]}]
    page = (await worker.http.post("/tokenize", json={"messages": messages})).json()
    usage = (await worker.chat(LONG)).json()["usage"]
    assert page["count"] == len(page["tokens"]) == usage["prompt_tokens"]
    text = (await worker.http.post("/tokenize", json={"prompt": "abcdefgh"})).json()
    assert text["count"] == 2
    assert (await worker.http.post("/tokenize", json={})).status_code == 400

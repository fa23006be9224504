"""Answers reach the client as the worker gave them, apart from what the router must take out."""

from __future__ import annotations

import httpx
import pytest

from tests.router.conftest import ALICE_SALT, RunningRouter, chat
from tests.router.scripted_worker import (
    DONE,
    STREAM_HEAD,
    USAGE,
    ScriptedWorker,
    answer_json,
    chunk,
    completion,
    event,
    raw,
    stream,
    usage_event,
)


async def test_it_relays_a_plain_answer_and_injects_the_salt(router: RunningRouter, worker: ScriptedWorker) -> None:
    answer = await router.post(chat("hi", temperature=0.5))
    assert answer.status_code == 200
    assert answer.json() == completion()
    asked = worker.asked[0].json
    assert asked == {**chat("hi", temperature=0.5), "cache_salt": ALICE_SALT}


async def test_it_strips_the_usage_event_nobody_asked_for(router: RunningRouter, worker: ScriptedWorker) -> None:
    worker.script = stream(event("a"), event("b"), usage_event(), DONE)
    answer = await router.post(chat(stream=True))
    assert answer.content == event("a") + event("b") + DONE
    assert worker.asked[0].json["stream_options"] == {"include_usage": True}


async def test_it_leaves_a_stream_that_asked_for_usage_byte_for_byte(
    router: RunningRouter, worker: ScriptedWorker
) -> None:
    worker.script = stream(event("a"), usage_event(), DONE)
    answer = await router.post(chat(stream=True, stream_options={"include_usage": True}))
    assert answer.content == event("a") + usage_event() + DONE


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 1000])
async def test_it_strips_the_usage_event_however_the_bytes_are_cut(
    router: RunningRouter, worker: ScriptedWorker, size: int
) -> None:
    whole = STREAM_HEAD + b"".join(map(chunk, (event("a"), event("[]"), usage_event(), DONE))) + b"0\r\n\r\n"
    pieces = [whole[i : i + size] for i in range(0, len(whole), size)]
    worker.script = raw(*pieces, close=False)
    answer = await router.post(chat(stream=True))
    assert answer.content == event("a") + event("[]") + DONE


async def test_it_strips_the_usage_event_when_all_events_come_in_one_chunk(
    router: RunningRouter, worker: ScriptedWorker
) -> None:
    worker.script = stream(event("a") + usage_event() + DONE)
    answer = await router.post(chat(stream=True))
    assert answer.content == event("a") + DONE


async def test_it_reuses_the_workers_connection(router: RunningRouter, worker: ScriptedWorker) -> None:
    for _ in range(3):
        assert (await router.post(chat())).status_code == 200
    worker.script = stream(event("a"), usage_event(), DONE)
    for _ in range(3):
        assert (await router.post(chat(stream=True))).status_code == 200
    assert worker.connections == 1


async def test_it_reconnects_when_a_kept_connection_was_closed(router: RunningRouter, worker: ScriptedWorker) -> None:
    worker.script = answer_json(extra="keep-alive: timeout=5\r\n")
    await router.post(chat())
    for writer in list(worker._writers):
        writer.transport.abort()
    answer = await router.post(chat())
    assert answer.status_code == 200
    assert router.runtime.telemetry.totals.retries == 0


async def test_it_shows_only_allowed_headers_of_the_worker(router: RunningRouter) -> None:
    answer = await router.post(chat(), headers={"x-request-id": "mine"})
    assert set(answer.headers) == {"content-type", "content-length", "x-request-id"}
    assert answer.headers["x-request-id"].startswith("req-")


async def test_it_relays_an_answer_without_a_length(router: RunningRouter, worker: ScriptedWorker) -> None:
    body = b'{"choices":[],"usage":null}'
    worker.script = raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n" + body)
    answer = await router.post(chat())
    assert answer.content == body


async def test_it_relays_a_workers_400_in_its_own_words(router: RunningRouter, worker: ScriptedWorker) -> None:
    words = {"error": {"message": "too long", "type": "BadRequestError", "param": "input_tokens", "code": 400}}
    worker.script = answer_json(words, status=400)
    answer = await router.post(chat())
    assert (answer.status_code, answer.json()) == (400, words)


@pytest.mark.parametrize(
    "script",
    [
        answer_json(b"<html>", content_type="text/html"),
        answer_json(b"{}", status=302, extra="location: http://169.254.169.254/\r\nset-cookie: a=b\r\n"),
        answer_json({"error": "Unauthorized"}, status=401),
        answer_json({"error": "no"}, status=404),
        raw(b"nonsense\r\n\r\n"),
        raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: x\r\n\r\n{}"),
    ],
)
async def test_it_answers_502_to_what_must_not_reach_a_client(
    router: RunningRouter, worker: ScriptedWorker, script: object
) -> None:
    worker.script = script
    answer = await router.post(chat())
    assert answer.status_code == 502
    assert answer.json()["error"]["code"] == "upstream_error"
    assert "set-cookie" not in answer.headers and "location" not in answer.headers


@pytest.mark.parametrize(
    ("cached", "known"), [(64, 64), (None, None), (-1, None), (10**9, USAGE["prompt_tokens"]), (0, 0)]
)
async def test_it_reads_cached_tokens_with_suspicion(
    router: RunningRouter, worker: ScriptedWorker, cached: int | None, known: int | None
) -> None:
    usage = {**USAGE, "prompt_tokens_details": {"cached_tokens": cached}}
    worker.script = answer_json(completion(usage))
    assert (await router.post(chat())).json()["usage"] == usage
    rows, _, _ = router.runtime.telemetry._second.take()
    [row] = [row for row in rows if row.tenant]
    assert row.prompt_tokens == USAGE["prompt_tokens"]
    assert (row.hit_known, row.hit_tokens) == ((0, 0) if known is None else (1, known))


async def test_it_answers_with_the_models_of_the_key(router: RunningRouter) -> None:
    async with router.client() as client:
        answer = await client.get("/v1/models")
    assert [model["id"] for model in answer.json()["data"]] == ["m"]


async def test_it_serves_pipelined_requests_one_after_another(router: RunningRouter) -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
    from tests.router.conftest import ALICE_KEY

    one = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer "
        + ALICE_KEY.encode()
        + b"\r\ncontent-length: %d\r\n\r\n" % len(body)
        + body
    )
    last = one.replace(b"host: x", b"host: x\r\nconnection: close")
    out = await router.raw(one + one + last)
    assert out.count(b"HTTP/1.1 200 OK") == 3


async def test_it_handles_many_clients_at_once(router: RunningRouter, worker: ScriptedWorker) -> None:
    import asyncio

    async with router.client() as client:
        answers: list[httpx.Response] = await asyncio.gather(
            *(client.post("/v1/chat/completions", json=chat(str(i))) for i in range(50))
        )
    assert {answer.status_code for answer in answers} == {200}
    assert router.runtime.service.inflight == 0

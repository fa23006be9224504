"""Input made to hurt: each gets a clear answer, costs bounded memory, loses nothing, and the router goes on serving."""

from __future__ import annotations

import asyncio
import json
import resource
import time

import pytest

from router.http.errors import BadRequest
from router.http.openai import parse
from tests.router.conftest import ALICE_KEY, RunningRouter, chat
from tests.router.scripted_worker import DONE, ScriptedWorker, answer_json, event, raw, stream

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer " + ALICE_KEY.encode() + b"\r\n"
MIB = 1024 * 1024
FLOOD_MIB = 96
"""Three times the largest body: what is kept of it must not grow with it."""


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def flood(router: RunningRouter, first: bytes, *, piece: bytes, pieces: int) -> bytes:
    """Send `first` and then pieces until the router stops reading them; what it said."""
    reader, writer = await asyncio.open_connection("127.0.0.1", router.settings.router_port)
    said = asyncio.create_task(reader.read(65536))
    writer.write(first)
    try:
        for _ in range(pieces):
            writer.write(piece)
            await asyncio.wait_for(writer.drain(), 5)
    except (ConnectionError, TimeoutError):
        pass
    try:
        return await asyncio.wait_for(said, 5)
    finally:
        writer.transport.abort()


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


FLOODS = {
    "endless chunked body": (HEAD + b"transfer-encoding: chunked\r\n\r\n", chunked(b"x" * MIB), 413),
    "far more than Content-Length": (HEAD + b"content-length: 10\r\n\r\n", b"x" * MIB, 400),
    "endless body after a refusal": (HEAD + b"content-length: 1073741824\r\n\r\n", b"x" * MIB, 413),
    "endless header": (HEAD + b"a: ", b"x" * MIB, 431),
    "endless request line": (b"POST /v1/", b"x" * MIB, 431),
}


@pytest.mark.parametrize("name", FLOODS)
async def test_a_flood_is_refused_without_being_kept(router: RunningRouter, worker: ScriptedWorker, name: str) -> None:
    first, piece, status = FLOODS[name]
    before_mib = peak_mib()
    said = await flood(router, first, piece=piece, pieces=FLOOD_MIB)
    assert said.startswith(b"HTTP/1.1 %d " % status), said[:200]
    assert peak_mib() - before_mib < 2.5 * 32, "at most one largest body and its copy"
    assert worker.connections == 0
    assert (await router.post(chat())).status_code == 200
    assert router.runtime.service.inflight == 0


async def test_a_body_that_ends_early_loses_nothing(router: RunningRouter, worker: ScriptedWorker) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", router.settings.router_port)
    writer.write(HEAD + b'content-length: 1000000\r\n\r\n{"model":"')
    await writer.drain()
    writer.close()
    await asyncio.sleep(0.05)
    assert worker.connections == 0 and router.runtime.service.inflight == 0
    assert len(router.runtime.edge.connections) == 0
    assert (await router.post(chat())).status_code == 200


@pytest.mark.parametrize("headers", [b"a: b\r\n" * 10_000, b"x-request-id: " + b"x" * MIB + b"\r\n"])
async def test_many_or_long_headers_are_refused(router: RunningRouter, worker: ScriptedWorker, headers: bytes) -> None:
    out = await router.raw(HEAD + headers + b"content-length: 2\r\n\r\n{}", timeout_s=1.0)
    assert out.startswith(b"HTTP/1.1 431 ") and b"x" * 100 not in out
    assert worker.connections == 0
    assert (await router.post(chat())).status_code == 200


COMPILED = {
    "nested quantifiers": {"structured_outputs": {"regex": "(a+)+b"}},
    "older spelling": {"guided_regex": "((a*)*)*c"},
    "recursive schema": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "t", "schema": {"$defs": {"t": {"items": {"$ref": "#/$defs/t"}}}, "$ref": "#"}},
        }
    },
}


@pytest.mark.parametrize("name", COMPILED)
async def test_patterns_and_schemas_are_passed_on_and_never_run_here(
    router: RunningRouter, worker: ScriptedWorker, name: str
) -> None:
    """The router bounds their size and depth; what they mean is the worker's to judge."""
    started = time.monotonic()
    answer = await router.post(chat("a" * 5000, **COMPILED[name]))
    assert answer.status_code == 200
    assert time.monotonic() - started < 1.0
    assert COMPILED[name].items() <= worker.asked[0].json.items()


async def test_a_worker_that_refuses_a_pattern_keeps_its_good_name(
    router: RunningRouter, worker: ScriptedWorker
) -> None:
    words = {"error": {"message": "the grammar is too complex", "type": "BadRequestError", "param": None, "code": 400}}
    worker.script = answer_json(words, status=400)
    for _ in range(8):
        answer = await router.post(chat(guided_regex="(a+)+b"))
        assert (answer.status_code, answer.json()) == (400, words)
    assert router.runtime.table.state(now=0).worker_states["p/w1"] == "ready"


@pytest.mark.parametrize("content", ["", " ", "\n\t ", "\u200b", "\u202e\u2066text", "x" * 10_000])
async def test_odd_prompts_are_served(router: RunningRouter, worker: ScriptedWorker, content: str) -> None:
    worker.script = stream(event("ok"), DONE)
    answer = await router.post(chat(content, stream=True))
    assert answer.content == event("ok") + DONE
    assert worker.asked[0].json["messages"][0]["content"] == content


@pytest.mark.parametrize("model", ["", " ", "x" * 513, "../m", "m\u0000", "M", "m "])
async def test_odd_model_names_are_refused(router: RunningRouter, worker: ScriptedWorker, model: str) -> None:
    answer = await router.post({**chat(), "model": model})
    assert answer.status_code in (400, 404)
    assert "error" in answer.json() and worker.connections == 0


@pytest.mark.parametrize(
    "script",
    [
        raw(b"HTTP/1.1 200 OK\r\nx: " + b"y" * (256 * 1024)),
        raw(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 50_000),
        raw(b"HTTP/1.1 100 Continue\r\n\r\n" * 3000, close=True),
        raw(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n{}"),
    ],
    ids=["endless header", "many headers", "endless 100s", "two lengths"],
)
async def test_a_worker_that_answers_without_end_or_sense_is_given_up(
    router: RunningRouter, worker: ScriptedWorker, script: object
) -> None:
    worker.script = script
    assert (await router.post(chat())).status_code == 502
    assert router.runtime.service.inflight == 0


def test_a_body_of_many_small_fields_is_refused() -> None:
    body = json.dumps({"model": "m", "messages": []} | {f"f{number}": 1 for number in range(10_000)}).encode()
    with pytest.raises(BadRequest, match="fields"):
        parse(body, chat=True)

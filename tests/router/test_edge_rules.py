"""The HTTP edge refuses what is not plainly well-formed (S4, S18), answers in OpenAI's shape, and goes on serving."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.router.conftest import ALICE_KEY, RunningRouter, StartRouter, chat, snapshot_for
from tests.router.scripted_worker import ScriptedWorker

BODY = json.dumps(chat()).encode()
AUTH = b"authorization: Bearer " + ALICE_KEY.encode() + b"\r\nconnection: close\r\n"


def request(
    *, line: bytes = b"POST /v1/chat/completions HTTP/1.1", headers: bytes = b"host: x\r\n", body: bytes = BODY
) -> bytes:
    return line + b"\r\n" + headers + AUTH + b"content-length: %d\r\n\r\n" % len(body) + body


REFUSED = {
    "CL and TE": (request(headers=b"host: x\r\ntransfer-encoding: chunked\r\n"), 400),
    "two CLs": (request(headers=b"host: x\r\ncontent-length: 5\r\n"), 400),
    "odd CL": (b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: +5\r\n\r\nhello", 400),
    "negative CL": (b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\nhello", 400),
    "odd TE": (b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked\r\n\r\n", 400),
    "bare LF": (b"POST /v1/completions HTTP/1.1\nhost: x\ncontent-length: 0\n\n", 400),
    "one bare LF": (request(headers=b"host: x\r\na: b\nc: d\r\n"), 400),
    "bare CR": (request(headers=b"host: x\r\na: b\rc\r\n"), 400),
    "NUL in a value": (request(headers=b"host: x\r\na: b\0c\r\n"), 400),
    "obs-fold": (request(headers=b"host: x\r\na: b\r\n c\r\n"), 400),
    "space before colon": (request(headers=b"host: x\r\na : b\r\n"), 400),
    "no Host": (request(headers=b""), 400),
    "two Hosts": (request(headers=b"host: x\r\nhost: y\r\n"), 400),
    "bad Host": (request(headers=b"host: a/?x\r\n"), 400),
    "Upgrade": (request(headers=b"host: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"), 400),
    "HTTP/1.0": (request(line=b"POST /v1/chat/completions HTTP/1.0"), 505),
    "no version": (request(line=b"POST /v1/chat/completions"), 400),
    "CONNECT": (request(line=b"CONNECT 169.254.169.254:80 HTTP/1.1"), 405),
    "TRACE": (request(line=b"TRACE /v1/models HTTP/1.1"), 405),
    "GET on a POST path": (request(line=b"GET /v1/chat/completions HTTP/1.1"), 405),
    "absolute form": (request(line=b"POST http://169.254.169.254/v1/chat/completions HTTP/1.1"), 404),
    "other path": (request(line=b"POST /v1/audio/speech HTTP/1.1"), 404),
    "encoded path": (request(line=b"POST /v1/chat%2fcompletions HTTP/1.1"), 404),
    "double slash": (request(line=b"POST //v1/chat/completions HTTP/1.1"), 404),
    "dot segment": (request(line=b"POST /v1/../v1/chat/completions HTTP/1.1"), 404),
    "capital path": (request(line=b"POST /V1/chat/completions HTTP/1.1"), 404),
    "path parameter": (request(line=b"POST /v1/chat/completions;a HTTP/1.1"), 404),
    "metrics path": (request(line=b"GET /metrics HTTP/1.1"), 404),
    "101 headers": (request(headers=b"host: x\r\n" + b"a: b\r\n" * 101), 431),
    "1 MiB header": (request(headers=b"host: x\r\na: " + b"b" * 2**20 + b"\r\n"), 431),
    "gzip body": (request(headers=b"host: x\r\ncontent-encoding: gzip\r\n"), 415),
    "form body": (request(headers=b"host: x\r\ncontent-type: application/x-www-form-urlencoded\r\n"), 415),
    "1 GiB announced": (b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1073741824\r\n\r\n", 413),
    "broken chunk": (
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nhello\r\n",
        400,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_it_refuses_in_openais_shape_without_asking_a_worker(
    router: RunningRouter, worker: ScriptedWorker, name: str
) -> None:
    data, status = REFUSED[name]
    out = await router.raw(data, timeout_s=0.5)
    head, _, body = out.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), out[:300]
    assert b"\r\nx-request-id: req-" in head
    size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    error = json.loads(body[:size])["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    assert worker.connections == 0
    assert (await router.post(chat())).status_code == 200


async def test_it_refuses_a_smuggled_second_request(router: RunningRouter, worker: ScriptedWorker) -> None:
    smuggled = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n"
    out = await router.raw(smuggled + b"0\r\n\r\n" + request())
    assert out.count(b"HTTP/1.1 ") == 1
    assert worker.connections == 0


async def test_it_takes_a_chunked_body_and_frames_it_anew(router: RunningRouter, worker: ScriptedWorker) -> None:
    async def pieces():
        for i in range(0, len(BODY), 7):
            yield BODY[i : i + 7]

    async with router.client() as client:
        answer = await client.post("/v1/chat/completions", content=pieces())
    assert answer.status_code == 200
    assert worker.asked[0].header("transfer-encoding") is None
    assert int(worker.asked[0].header("content-length") or 0) == len(worker.asked[0].body)


async def test_it_answers_413_to_an_endless_chunked_body(start_router: StartRouter, worker: ScriptedWorker) -> None:
    router = await start_router(snapshot_for([worker.url]), router_body_bytes_max=2048)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    out = await router.raw(head + (b"400\r\n" + b"x" * 1024 + b"\r\n") * 4, timeout_s=0.5)
    assert out.startswith(b"HTTP/1.1 413 ")


async def test_it_says_continue_when_asked(router: RunningRouter) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", router.settings.router_port)
    head, _, body = request(headers=b"host: x\r\nexpect: 100-continue\r\n").partition(b"\r\n\r\n")
    writer.write(head + b"\r\n\r\n")
    assert await asyncio.wait_for(reader.readexactly(25), 2) == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(body)
    assert (await asyncio.wait_for(reader.read(20), 2)).startswith(b"HTTP/1.1 200 OK")
    writer.transport.abort()


@pytest.mark.parametrize("data", [b"POST /v1/comp", request()[:-5]])
async def test_it_cuts_off_a_slow_request(start_router: StartRouter, worker: ScriptedWorker, data: bytes) -> None:
    router = await start_router(
        snapshot_for([worker.url]), router_client_head_timeout_s=0.3, router_client_body_timeout_s=0.3
    )
    out = await router.raw(data, timeout_s=2.0)
    assert out.startswith(b"HTTP/1.1 408 ")


async def test_it_drops_headers_that_are_not_its_own(router: RunningRouter, worker: ScriptedWorker) -> None:
    trace = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    await router.post(
        chat(),
        headers={"cookie": "a=b", "x-forwarded-for": "1.2.3.4", "x-request-id": "x" * 4096, "traceparent": trace},
    )
    names = {line.partition(":")[0].lower() for line in worker.asked[0].raw_head.decode().split("\r\n")[1:]}
    assert names == {"host", "content-type", "x-request-id", "traceparent", "content-length"}
    assert ALICE_KEY.encode() not in worker.asked[0].raw_head


async def test_it_sends_its_own_key_to_workers(start_router: StartRouter, worker: ScriptedWorker) -> None:
    router = await start_router(snapshot_for([worker.url]), worker_api_key="worker-secret")
    await router.post(chat())
    assert worker.asked[0].header("authorization") == "Bearer worker-secret"


@pytest.mark.parametrize("key", [None, "nonsense", "tm_" + "a" * 12 + "_" + "b" * 43, ALICE_KEY[:-1] + "!"])
async def test_it_answers_401_alike_to_every_wrong_key(router: RunningRouter, key: str | None) -> None:
    answer = await router.post(chat(), key=key)
    assert answer.status_code == 401
    reference = await router.post(chat(), key="other")
    assert answer.json() == reference.json()


async def test_it_answers_404_to_an_unknown_model(router: RunningRouter) -> None:
    answer = await router.post({**chat(), "model": "nobody"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"

"""What a client sees of failing workers (A3, A4, A5), and what a worker sees of leaving clients."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from tests.router.conftest import ALICE_KEY, RunningRouter, StartRouter, chat, free_port, snapshot_for
from tests.router.scripted_worker import (
    DONE,
    STREAM_HEAD,
    ScriptedWorker,
    answer_json,
    chunk,
    completion,
    event,
    hang,
    raw,
    stream,
    usage_event,
    watching,
)

FAILURES = {
    "reset": raw(b""),
    "head without body": raw(STREAM_HEAD),
    "half a head": raw(b"HTTP/1.1 200 O"),
    "500": answer_json({"error": "x"}, status=500),
    "503": answer_json({"error": "x"}, status=503),
    "429": answer_json({"error": "x"}, status=429),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_it_asks_one_other_worker_before_the_first_byte(
    start_router: StartRouter, worker: ScriptedWorker, other_worker: ScriptedWorker, name: str
) -> None:
    router = await start_router(snapshot_for([worker.url, other_worker.url]))
    worker.script = FAILURES[name]
    other_worker.script = stream(event("ok"), usage_event(), DONE)
    for i in range(6):
        answer = await router.post(chat(f"{i}" * 600, stream=True))
        assert answer.status_code == 200 and answer.content == event("ok") + DONE
    assert worker.asked and len(other_worker.asked) == 6
    assert set(router.runtime.table.state(now=0).worker_outstanding.values()) == {0}


async def test_it_goes_elsewhere_when_nobody_listens(start_router: StartRouter, worker: ScriptedWorker) -> None:
    router = await start_router(snapshot_for([f"http://127.0.0.1:{free_port()}", worker.url]))
    for i in range(6):
        assert (await router.post(chat(f"{i}" * 600))).status_code == 200


@pytest.mark.parametrize(
    ("script", "status", "code"),
    [
        (raw(b""), 502, "upstream_error"),
        (answer_json({"error": "x"}, status=500), 502, "upstream_error"),
        (answer_json({"error": "x"}, status=503), 503, "no_worker_available"),
    ],
)
async def test_it_says_so_when_the_only_worker_fails(
    router: RunningRouter, worker: ScriptedWorker, script: object, status: int, code: str
) -> None:
    worker.script = script
    answer = await router.post(chat())
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert len(worker.asked) == 1
    assert ("retry-after" in answer.headers) is (status == 503)


async def test_it_keeps_retries_within_their_budget(
    start_router: StartRouter, worker: ScriptedWorker, other_worker: ScriptedWorker
) -> None:
    router = await start_router(snapshot_for([worker.url, other_worker.url]))
    worker.script = other_worker.script = answer_json({"error": "x"}, status=500)
    requests = 60
    for i in range(requests):
        await router.post(chat(f"{i}"))
    asked = len(worker.asked) + len(other_worker.asked)
    assert requests < asked <= requests * 1.2 + 10


async def test_it_ends_a_broken_stream_with_an_error_event(router: RunningRouter, worker: ScriptedWorker) -> None:
    worker.script = raw(STREAM_HEAD + chunk(event("a")), chunk(event("b"))[:20], pause_s=0.05)
    started = asyncio.get_running_loop().time()
    answer = await router.post(chat(stream=True))
    assert asyncio.get_running_loop().time() - started < 1.0
    events = answer.content.split(b"\n\n")
    assert events[0] + b"\n\n" == event("a")
    error = json.loads(events[1].removeprefix(b"data: "))["error"]
    assert error["code"] == "upstream_died" and b"[DONE]" not in answer.content
    assert router.runtime.service.inflight == 0


@pytest.mark.parametrize("head", [STREAM_HEAD, b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"])
async def test_it_does_not_pass_a_stream_without_done_as_whole(
    router: RunningRouter, worker: ScriptedWorker, head: bytes
) -> None:
    data = event("a")
    framed = chunk(data) + b"0\r\n\r\n" if head is STREAM_HEAD else data
    worker.script = raw(head + framed)
    answer = await router.post(chat(stream=True))
    assert answer.content.startswith(event("a") + b'data: {"error"')


async def test_it_closes_a_plain_answer_that_breaks_off(router: RunningRouter, worker: ScriptedWorker) -> None:
    worker.script = raw(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{", b"}", pause_s=0.05
    )
    with pytest.raises(Exception, match=r"peer closed|incomplete"):
        await router.post(chat())


async def test_it_gives_up_on_a_silent_stream(start_router: StartRouter, worker: ScriptedWorker) -> None:
    router = await start_router(snapshot_for([worker.url]), router_idle_timeout_s=0.3)

    async def stall(asked: object, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + chunk(event("a")))
        await hang(asked, writer)

    worker.script = stall
    answer = await asyncio.wait_for(router.post(chat(stream=True)), 3)
    assert b'"upstream_timeout"' in answer.content


async def test_it_leaves_a_stopped_worker_for_another(start_router: StartRouter, worker: ScriptedWorker) -> None:
    """A stopped process still accepts connections through its backlog."""
    with socket.socket() as stopped:
        stopped.bind(("127.0.0.1", 0))
        stopped.listen(64)
        url = f"http://127.0.0.1:{stopped.getsockname()[1]}"
        router = await start_router(snapshot_for([url, worker.url]), router_stream_head_timeout_s=0.3)
        worker.script = stream(event("ok"), DONE)
        answers = await asyncio.gather(*(router.post(chat(f"{i}" * 600, stream=True)) for i in range(8)))
        assert {answer.status_code for answer in answers} == {200}


async def test_it_answers_504_when_no_other_worker_is_left(start_router: StartRouter, worker: ScriptedWorker) -> None:
    router = await start_router(snapshot_for([worker.url]), router_answer_timeout_s=0.3)
    worker.script = hang
    answer = await router.post(chat())
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "upstream_timeout")


@pytest.mark.parametrize("begun", [False, True])
async def test_it_cancels_the_worker_when_the_client_leaves(
    router: RunningRouter, worker: ScriptedWorker, begun: bool
) -> None:
    async def slow(asked: object, writer: asyncio.StreamWriter) -> None:
        if begun:
            writer.write(STREAM_HEAD + chunk(event("a")))
        await hang(asked, writer)

    worker.script = watching(slow)
    body = json.dumps(chat(stream=True)).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", router.settings.router_port)
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer "
        + ALICE_KEY.encode()
        + b"\r\ncontent-length: %d\r\n\r\n" % len(body)
        + body
    )
    while not worker.asked:  # noqa: ASYNC110 - the condition is in another process or object
        await asyncio.sleep(0.01)
    if begun:
        await reader.readuntil(b"\n\n")
    writer.close()
    await asyncio.wait_for(worker.disconnected.wait(), 1)
    assert router.runtime.service.inflight == 0
    assert set(router.runtime.table.state(now=0).worker_outstanding.values()) == {0}
    rows, _, _ = router.runtime.telemetry._second.take()
    assert sum(row.errors.get("client_disconnect", 0) for row in rows) == 1


async def test_it_cuts_off_a_client_that_does_not_read(start_router: StartRouter, worker: ScriptedWorker) -> None:
    router = await start_router(snapshot_for([worker.url]), router_client_stalled_s=0.5)
    sent = 0

    async def flood(asked: object, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(STREAM_HEAD)
        while True:
            writer.write(chunk(event("x" * 60_000)))
            await writer.drain()
            sent += 60_000

    worker.script = watching(flood)
    body = json.dumps(chat(stream=True)).encode()
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, ("127.0.0.1", router.settings.router_port))
    await loop.sock_sendall(
        sock,
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer "
        + ALICE_KEY.encode()
        + b"\r\ncontent-length: %d\r\n\r\n" % len(body)
        + body,
    )
    await asyncio.wait_for(worker.disconnected.wait(), 5)
    assert sent < 20_000_000, "the worker was not read from while the client stood still"
    sock.close()


async def test_it_ejects_a_worker_that_keeps_failing(
    start_router: StartRouter, worker: ScriptedWorker, other_worker: ScriptedWorker
) -> None:
    router = await start_router(snapshot_for([worker.url, other_worker.url]))
    worker.script = answer_json({"error": "x"}, status=500)
    for i in range(30):
        await router.post(chat(f"{i}" * 600))
    assert len(worker.asked) <= 5
    page = (await router.admin("/state")).json()
    assert page["table"]["worker_states"]["p/w1"] == "ejected"


async def test_it_answers_503_with_retry_after_when_the_pool_is_empty(start_router: StartRouter) -> None:
    router = await start_router(snapshot_for([]))
    answer = await router.post(chat())
    assert answer.status_code == 503 and int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize("url", ["http://169.254.169.254:80", "http://0x7f000001:9000", "https://127.0.0.1:9000"])
async def test_it_never_connects_to_addresses_no_worker_has(start_router: StartRouter, url: str) -> None:
    router = await start_router(snapshot_for([url]))
    assert (await router.post(chat())).status_code == 503


async def test_it_passes_over_a_worker_at_its_limit(
    start_router: StartRouter, worker: ScriptedWorker, other_worker: ScriptedWorker
) -> None:
    router = await start_router(snapshot_for([worker.url, other_worker.url]), router_worker_inflight_max=1)

    may_answer = asyncio.Event()

    async def waits(asked: object, writer: asyncio.StreamWriter) -> None:
        await may_answer.wait()
        await answer_json(completion())(asked, writer)

    worker.script = other_worker.script = waits
    first = [asyncio.create_task(router.post(chat("same" * 300))) for _ in range(2)]
    async with asyncio.timeout(10):
        while not (worker.asked and other_worker.asked):  # noqa: ASYNC110 - filled by the workers' own tasks
            await asyncio.sleep(0.01)
    third = await router.post(chat("same" * 300))
    assert third.status_code == 503
    may_answer.set()
    assert {(await task).status_code for task in first} == {200}


async def test_it_holds_an_error_inside_a_stream_against_the_worker(
    start_router: StartRouter, worker: ScriptedWorker, other_worker: ScriptedWorker
) -> None:
    router = await start_router(snapshot_for([worker.url, other_worker.url]))
    dead = b'data: {"error":{"message":"EngineCore died","type":"InternalServerError","code":500}}\n\n'
    worker.script = stream(event("a"), dead, DONE)
    other_worker.script = stream(event("a"), DONE)
    for i in range(20):
        await router.post(chat(f"{i}" * 600, stream=True))
    assert len(worker.asked) == 5, "ejected after five"


async def test_it_reaches_a_worker_by_name(start_router: StartRouter, worker: ScriptedWorker) -> None:
    router = await start_router(snapshot_for([f"http://localhost:{worker.port}"]))
    assert (await router.post(chat())).status_code == 200

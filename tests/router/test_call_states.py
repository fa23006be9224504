"""A call ends once and gives back what it holds, whichever state it is left from."""

from __future__ import annotations

import asyncio
import json

import pytest

from router import service
from router.http.upstream import WorkerPool
from tests.router.conftest import ALICE_KEY, RunningRouter, chat
from tests.router.scripted_worker import (
    DONE,
    STREAM_HEAD,
    Asked,
    ScriptedWorker,
    answer_json,
    event,
    stream,
    usage_event,
)


def held(router: RunningRouter) -> tuple[int, int]:
    """(calls under way, reservations)."""
    outstanding = router.runtime.table.state(now=0).worker_outstanding
    return router.runtime.service.inflight, sum(outstanding.values())


def errors(router: RunningRouter) -> dict[str, int]:
    rows, _, _ = router.runtime.telemetry._second.take()
    return {kind: count for row in rows for kind, count in row.errors.items()}


@pytest.mark.interpreted
async def test_a_client_may_leave_while_the_worker_is_connected_to(
    router: RunningRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    connecting, given_up = asyncio.Event(), asyncio.Event()

    async def connect(self: WorkerPool, *, timeout_s: float) -> None:
        connecting.set()
        try:
            await asyncio.sleep(60)
        finally:
            given_up.set()

    monkeypatch.setattr(WorkerPool, "connect", connect)
    body = json.dumps(chat()).encode()
    _, writer = await asyncio.open_connection("127.0.0.1", router.settings.router_port)
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %b\r\ncontent-length: %d\r\n\r\n%b"
        % (ALICE_KEY.encode(), len(body), body)
    )
    await asyncio.wait_for(connecting.wait(), 2)
    assert held(router) == (1, 1)
    writer.close()
    await asyncio.wait_for(given_up.wait(), 2)
    assert held(router) == (0, 0)
    assert errors(router) == {"client_disconnect": 1}


@pytest.mark.interpreted
@pytest.mark.parametrize("step", ["check_answer", "relayed_head"])
async def test_a_mistake_of_ours_costs_one_answer_and_nothing_else(
    router: RunningRouter, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def mistake(*args: object, **kwargs: object) -> None:
        raise KeyError("a mistake")

    with monkeypatch.context() as patched:
        patched.setattr(service, step, mistake)
        answer = await router.post(chat())
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert held(router) == (0, 0)
    assert errors(router) == {"internal": 1}
    assert (await router.post(chat())).status_code == 200


@pytest.mark.interpreted
async def test_a_recorder_that_fails_spoils_no_answer(router: RunningRouter, monkeypatch: pytest.MonkeyPatch) -> None:
    def mistake(*args: object) -> None:
        raise KeyError("a mistake")

    monkeypatch.setattr(router.runtime.telemetry, "record", mistake)
    assert (await router.post(chat())).status_code == 200
    assert held(router) == (0, 0)


async def test_a_stale_connection_is_replaced_without_a_retry(router: RunningRouter, worker: ScriptedWorker) -> None:
    served: set[asyncio.StreamWriter] = set()

    async def once(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if writer in served:
            writer.transport.abort()
            return
        served.add(writer)
        await answer_json()(asked, writer)

    worker.script = once
    for _ in range(3):
        assert (await router.post(chat())).status_code == 200
    rows, _, _ = router.runtime.telemetry._second.take()
    assert sum(row.retries for row in rows) == 0 and not any(row.errors for row in rows)
    assert held(router) == (0, 0)


async def test_requests_sent_ahead_are_answered_in_order(router: RunningRouter, worker: ScriptedWorker) -> None:
    async def echo(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await stream(event(asked.json["messages"][0]["content"]), b"data: [DONE]\n\n")(asked, writer)

    worker.script = echo
    requests = b""
    for i in range(5):
        body = json.dumps(chat(f"number {i}", stream=True)).encode()
        last = b"connection: close\r\n" if i == 4 else b""
        requests += (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %b\r\n"
            b"%bcontent-length: %d\r\n\r\n%b" % (ALICE_KEY.encode(), last, len(body), body)
        )
    answers = await router.raw(requests)
    places = [answers.index(b"number %d" % i) for i in range(5)]
    assert places == sorted(places)
    assert held(router) == (0, 0)


async def test_a_client_that_closes_behind_the_end_mark_had_its_whole_answer(
    router: RunningRouter, worker: ScriptedWorker
) -> None:
    async def all_but_the_last_chunk(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + last_chunk_held_back(event("a"), usage_event(), DONE))
        await asyncio.sleep(60)

    worker.script = all_but_the_last_chunk
    async with (
        router.client() as client,
        client.stream("POST", "/v1/chat/completions", json=chat(stream=True)) as answer,
    ):
        async for line in answer.aiter_lines():
            if line == "data: [DONE]":
                break
    for _ in range(100):
        if held(router) == (0, 0):
            break
        await asyncio.sleep(0.01)
    rows, _, _ = router.runtime.telemetry._second.take()
    assert [(row.requests, row.errors, row.usage_known, row.hit_tokens) for row in rows] == [(1, {}, 1, 64)]


def last_chunk_held_back(*events: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in events)

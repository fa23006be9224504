"""Workers that are down are known before a request is lost on them (A5, A9)."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable

import pytest

from router.contract.ids import WorkerId
from router.contract.snapshot import WorkerEntry
from router.http import worker_probes
from tests.router.conftest import RunningRouter, StartRouter, chat, free_port, snapshot_for
from tests.router.scripted_worker import DONE, Asked, ScriptedWorker, answer_json, event, hang, stream


async def until(condition: Callable[[], bool], *, within_s: float, what: str) -> float:
    """Seconds that it took."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < within_s, f"not within {within_s} s: {what}"
        await asyncio.sleep(0.005)
    return time.monotonic() - started


def healthy(script: Callable) -> Callable:
    """The worker answers /health at once, and everything else by `script`."""

    async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await (answer_json(b"", content_type="text/plain") if is_probe(asked) else script)(asked, writer)

    return answer


def is_probe(asked: Asked) -> bool:
    return asked.raw_head.startswith(b"GET /health ")


def state(router: RunningRouter, number: int) -> str:
    return router.runtime.table.state(now=time.time()).worker_states[f"p/w{number}"]


@pytest.fixture
async def stopped() -> AsyncIterator[str]:
    """The URL of a stopped process: its kernel accepts connections, nobody answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


async def test_a_stopped_worker_is_left_within_10_s_without_losing_a_request_a5(
    start_router: StartRouter, worker: ScriptedWorker, stopped: str
) -> None:
    worker.script = healthy(answer_json())
    router = await start_router(snapshot_for([worker.url, stopped]), router_probe_interval_s=1.0)
    # A plain answer may take ten minutes: only the probes can tell that this one will not come.
    waiting = [asyncio.create_task(router.post(chat(f"{number}" * 600), timeout=20)) for number in range(8)]
    took_s = await until(lambda: state(router, 2) == "ejected", within_s=10, what="the stopped worker is ejected")
    assert took_s <= 10
    assert {(await each).status_code for each in waiting} == {200}
    assert set(router.runtime.table.state(now=0).worker_outstanding.values()) == {0}


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes that are done within a tenth of the time."""
    monkeypatch.setattr(worker_probes, "ANSWER_S", 0.2)
    monkeypatch.setattr(worker_probes, "FAILED_PAUSE_S", 0.05)


async def test_with_all_workers_down_it_says_so_at_once_and_serves_as_soon_as_one_is_back_a9(
    start_router: StartRouter, worker: ScriptedWorker, other_worker: ScriptedWorker
) -> None:
    worker.script = other_worker.script = healthy(answer_json())
    router = await start_router(snapshot_for([worker.url, other_worker.url]), router_probe_interval_s=0.2)
    assert (await router.post(chat())).status_code == 200
    for each in (worker, other_worker):
        await each.stop()
    await until(lambda: state(router, 1) == state(router, 2) == "ejected", within_s=5, what="both are ejected")
    assert (await router.admin("/state")).json()["table"]["panicking_pools"] == ["p"]
    took_ms = []
    async with router.client() as client:
        for number in range(20):
            started = time.monotonic()
            answer = await client.post("/v1/chat/completions", json=chat(f"{number}"))
            took_ms.append((time.monotonic() - started) * 1000)
            assert answer.status_code == 503 and int(answer.headers["retry-after"]) >= 1
    assert sorted(took_ms)[17] <= 50, took_ms
    await worker.start_again()
    started = time.monotonic()
    while (await router.post(chat())).status_code != 200:
        assert time.monotonic() - started < 2, "it recovers within 2 s"
        await asyncio.sleep(0.02)


async def test_with_all_workers_silent_they_are_tried_all_the_same(
    start_router: StartRouter, worker: ScriptedWorker, hasty: None
) -> None:
    """A machine too busy to answer probes in time still answers requests, late."""
    late = asyncio.Event()

    async def slow(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await (hang if is_probe(asked) else _when(late, answer_json()))(asked, writer)

    worker.script = slow
    router = await start_router(snapshot_for([worker.url]), router_probe_interval_s=0.1)
    request = asyncio.create_task(router.post(chat()))
    await until(lambda: router.runtime.table._fleet.workers["p/w1"].probe == "silent", within_s=5, what="silent")
    assert (await router.admin("/state")).json()["table"]["panicking_pools"] == ["p"]
    late.set()
    assert (await request).status_code == 200
    assert (await router.post(chat())).status_code == 200


def _when(event: asyncio.Event, script: Callable) -> Callable:
    async def waiting(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await event.wait()
        await script(asked, writer)

    return waiting


async def test_with_most_workers_down_the_others_serve_everything_and_panic_is_shown_a9(
    start_router: StartRouter, worker: ScriptedWorker, hasty: None
) -> None:
    worker.script = healthy(answer_json())
    gone = [f"http://127.0.0.1:{free_port()}" for _ in range(3)]
    router = await start_router(snapshot_for([worker.url, *gone]), router_probe_interval_s=0.1)
    await until(lambda: state(router, 4) == state(router, 3) == state(router, 2) == "ejected", within_s=5, what="down")
    for number in range(40):
        assert (await router.post(chat(f"{number}" * 600))).status_code == 200
    assert (await router.admin("/state")).json()["table"]["panicking_pools"] == ["p"]
    assert state(router, 1) == "ready"


async def test_a_worker_whose_engine_is_dead_gets_nothing(
    start_router: StartRouter, worker: ScriptedWorker, other_worker: ScriptedWorker, hasty: None
) -> None:
    """vLLM goes on listening and answers /health with 503."""

    async def dead(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await (answer_json({}, status=503) if is_probe(asked) else hang)(asked, writer)

    worker.script = dead
    other_worker.script = healthy(stream(event("ok"), DONE))
    router = await start_router(snapshot_for([worker.url, other_worker.url]), router_probe_interval_s=0.1)
    await until(lambda: state(router, 1) == "ejected", within_s=5, what="the dead engine is noticed")
    for number in range(12):
        assert (await router.post(chat(f"{number}" * 600, stream=True))).status_code == 200
    assert all(is_probe(asked) for asked in worker.asked)
    worker.script = healthy(stream(event("ok"), DONE))
    await until(lambda: state(router, 1) == "ready", within_s=5, what="the engine is back")


async def test_a_server_without_a_health_page_is_not_down(
    start_router: StartRouter, worker: ScriptedWorker, hasty: None
) -> None:
    async def no_page(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await (answer_json({}, status=404) if is_probe(asked) else answer_json())(asked, writer)

    worker.script = no_page
    router = await start_router(snapshot_for([worker.url]), router_probe_interval_s=0.05)
    await until(lambda: sum(map(is_probe, worker.asked)) > 5, within_s=5, what="it was asked")
    assert state(router, 1) == "ready" and (await router.post(chat())).status_code == 200


@pytest.mark.parametrize("left", [True, False], ids=["left", "maintenance"])
async def test_a_worker_that_left_or_is_in_maintenance_is_not_asked(
    start_router: StartRouter, worker: ScriptedWorker, left: bool
) -> None:
    worker.script = healthy(answer_json())
    router = await start_router(snapshot_for([worker.url]), router_probe_interval_s=0.05)
    await until(lambda: len(worker.asked) > 2, within_s=5, what="it was asked")
    entry = WorkerEntry(pool="p", url=worker.url, state="maintenance")
    router.runtime._probes.follow({} if left else {WorkerId("p/w1"): entry})
    asked = len(worker.asked)
    await asyncio.sleep(0.3)
    assert len(worker.asked) <= asked + 1

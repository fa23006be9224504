"""A worker process that is stopped, not dead: it is ejected in time, and requests elsewhere do not notice (A5)."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import httpx
import pytest

from router.call import Call
from router.contract.ids import WorkerId
from tests.router.conftest import MODEL, RunningRouter, StartRouter, chat, free_port, snapshot_for
from tests.router.plain_client import PlainClient
from tests.router.process import ROOT
from tests.router.scripted_worker import Asked, ScriptedWorker, answer_json

SERVICE_S = 0.1
CLIENTS = 12
STOPPED = WorkerId("p/w3")


@pytest.fixture
async def stoppable() -> AsyncIterator[tuple[int, str]]:
    """(process id, URL) of a simulated worker."""
    port = free_port()
    command = ("-m", "simulator", "worker", "--port", str(port), "--model", MODEL, "--events-port", "0")
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, "--time-scale", "50", cwd=ROOT, stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(trust_env=False) as client:
        for _ in range(300):
            try:
                await client.get(f"{url}/health")
                break
            except httpx.HTTPError:
                await asyncio.sleep(0.05)
    yield process.pid, url
    process.send_signal(signal.SIGCONT)
    process.kill()
    await process.wait()


@dataclass
class Seen:
    """Seconds of each request that was never on the stopped worker, and how many were."""

    elsewhere: list[float] = field(default_factory=list)
    caught: int = 0

    def record(self, call: Call) -> None:
        assert call.decision is not None
        if STOPPED in call.tried or call.decision.worker == STOPPED:
            self.caught += 1
        else:
            self.elsewhere.append(call.outcome.duration_ms / 1000)

    @property
    def p99(self) -> float:
        return sorted(self.elsewhere)[int(len(self.elsewhere) * 0.99)]


async def load(router: RunningRouter, *, until: Callable[[], bool]) -> Seen:
    """Closed-loop clients; every one of their requests must be served."""
    router.runtime.service._recorder = seen = Seen()

    async def client(number: int) -> None:
        plain = PlainClient(router.settings.router_port)
        turn = 0
        while not until():
            turn += 1
            status, _ = await plain.post(chat(f"{(number + turn) % 30} " * 800))
            assert status == 200
        plain.close()

    await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    return seen


async def test_others_do_not_notice_a_stopped_worker_which_is_ejected_within_10_s_a5(
    start_router: StartRouter, worker: ScriptedWorker, other_worker: ScriptedWorker, stoppable: tuple[int, str]
) -> None:
    async def paced(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if not asked.raw_head.startswith(b"GET /health"):
            await asyncio.sleep(SERVICE_S)
        await answer_json()(asked, writer)

    worker.script = other_worker.script = paced
    pid, url = stoppable
    router = await start_router(snapshot_for([worker.url, other_worker.url, url]), router_probe_interval_s=1.0)
    ends_at = time.monotonic() + 3
    before = await load(router, until=lambda: time.monotonic() > ends_at)
    assert before.caught > 0, "it is given requests while it runs"
    os.kill(pid, signal.SIGSTOP)
    stopped_at = time.monotonic()
    during = await load(router, until=lambda: state_of(router) == "ejected")
    assert time.monotonic() - stopped_at <= 10
    assert during.p99 <= 1.2 * before.p99
    assert 0 < during.caught < 0.1 * len(during.elsewhere)
    assert set(router.runtime.table.state(now=0).worker_outstanding.values()) == {0}


def state_of(router: RunningRouter) -> str:
    return router.runtime.table.state(now=time.time()).worker_states[STOPPED]

"""Workers that fail at once, always or now and then: what they are given, and what clients notice (A7, A8).

The router's clock is the test's: it moves on by PACE_S with every request.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable

import pytest

from tests.router.conftest import RunningRouter, StartRouter, chat, snapshot_for
from tests.router.plain_client import PlainClient
from tests.router.scripted_worker import (
    DONE,
    STREAM_HEAD,
    Asked,
    ScriptedWorker,
    answer_json,
    chunk,
    event,
    raw,
    stream,
)

PACE_S = 0.25


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def workers() -> AsyncIterator[list[ScriptedWorker]]:
    made = [await ScriptedWorker().start() for _ in range(4)]
    yield made
    for worker in made:
        await worker.stop()


async def play(router: RunningRouter, clock: Clock, requests: int, *, told: Callable[[], None]) -> Counter[str]:
    """What clients get: `ok`, the status of a refusal, or `broken` for a stream without its end."""
    outcomes: Counter[str] = Counter()
    client = PlainClient(router.settings.router_port)
    for number in range(requests):
        clock.now += PACE_S
        status, payload = await client.post(chat(f"{number} " * 200, stream=True))
        if b'{"error"' in payload:
            client.close()
        whole = status == 200 and payload.endswith(DONE)
        outcomes["ok" if whole else "broken" if status == 200 else str(status)] += 1
        told()
    client.close()
    return outcomes


def with_clock(router: RunningRouter) -> Clock:
    clock = Clock()
    router.runtime.service._clock = clock
    return clock


@pytest.mark.parametrize("status", [500, 429])
async def test_a_worker_that_refuses_everything_at_once_never_gets_more_than_its_share_a7(
    start_router: StartRouter, workers: list[ScriptedWorker], status: int
) -> None:
    """An instant failure leaves it idle, and so most attractive to whoever looks at load alone."""
    router = await start_router(snapshot_for([worker.url for worker in workers]))
    clock = with_clock(router)
    bad = workers[0]
    bad.script = answer_json({"error": "x"}, status=status)
    for worker in workers[1:]:
        worker.script = stream(event("ok"), DONE)
    health = router.runtime.table._fleet.workers["p/w1"].health
    asked_when_ejected: list[int] = []

    def note() -> None:
        if health.ejections and not asked_when_ejected:
            asked_when_ejected.append(len(bad.asked))

    requests = 800
    outcomes = await play(router, clock, requests, told=note)
    assert outcomes == {"ok": requests}
    assert asked_when_ejected == [5]
    # 200 s hold ejections of 30, 60 and 90 s, each with one request on probation before it.
    assert len(bad.asked) <= 5 + 3 <= requests / len(workers)


async def test_a_flapping_worker_is_left_for_longer_each_time_and_clients_notice_little_a8(
    start_router: StartRouter, workers: list[ScriptedWorker]
) -> None:
    """Fine for 15 s, then for 15 s it dies inside every stream, which no retry can mend, or before the first byte."""
    router = await start_router(snapshot_for([worker.url for worker in workers]))
    clock = with_clock(router)
    begun = clock.now
    good, flaps = stream(event("ok"), DONE), 0

    async def flapping(asked: Asked, writer: asyncio.StreamWriter) -> None:
        nonlocal flaps
        phase, failing = divmod((clock.now - begun) // 15, 2)
        flaps += failing == 1
        dies = raw(STREAM_HEAD + chunk(event("a"))) if phase % 2 else raw(b"")
        await (dies if failing else good)(asked, writer)

    workers[0].script = flapping
    for worker in workers[1:]:
        worker.script = good
    health = router.runtime.table._fleet.workers["p/w1"].health
    lengths: dict[int, float] = {}

    def note() -> None:
        if health.ejections:
            lengths.setdefault(health.ejections, round(health.until - clock.now))

    outcomes = await play(router, clock, 3200, told=note)
    assert flaps >= 8
    assert len(lengths) >= 4
    assert list(lengths.values()) == [min(30 * n, 300) for n in lengths]
    assert outcomes.total() - outcomes["ok"] <= 0.005 * outcomes.total(), outcomes
    assert workers[0].asked and len(workers[0].asked) < 0.25 * outcomes.total()

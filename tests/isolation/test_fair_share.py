"""Fair share (S11): Alice floods two simulated workers with unique prefixes; Charlie's p95 TTFT hardly moves.

A real router in front of worker processes whose caches hold 8k tokens each: without a budget the flood both queues
before Charlie and evicts his prompt's head; with one it does neither.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import AsyncIterator, Iterator

import httpx
import msgspec
import pytest

from router.contract.snapshot import PoolPolicy, TenantGrant
from tests.fleet.simulated import BLOCK_SIZE, worker
from tests.router.conftest import ALICE_KEY, CHARLIE_KEY, RunningRouter, StartRouter, snapshot_for, start_router  # noqa: F401

pytestmark = [pytest.mark.flow, pytest.mark.timeout(180)]
PREFILL_TPS, TIME_SCALE = 4000, 2
BUDGET_TPS = 0.05 * 2 * PREFILL_TPS * TIME_SCALE
"""A twentieth of what both workers prefill."""
RATIO_MAX = 1.5
FILLING = "tide moon ebb flood shore keel buoy sail reef cape " * 200


@pytest.fixture
def workers() -> Iterator[list[str]]:
    options = ("--prefill-tps", str(PREFILL_TPS), "--time-scale", str(TIME_SCALE), "--blocks", "512")
    with worker(*options, events=False) as first, worker(*options, events=False) as second:
        yield [first, second]


def text(tokens: int, number: int) -> str:
    """A text of its own from its first block on; the simulator counts four bytes a token."""
    return (f"{number:07d} " + FILLING)[: tokens * 4]


async def ttft_ms(client: httpx.AsyncClient, key: str, messages: list[dict[str, str]]) -> float | None:
    """Milliseconds to the first body byte; None where it was refused."""
    body = {"model": "sim", "messages": messages, "max_tokens": 2, "stream": True}
    began = time.perf_counter()
    async with client.stream(
        "POST", "/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"}
    ) as answer:
        first = None
        async for chunk in answer.aiter_raw():
            first = first or (time.perf_counter() if chunk else None)
        return None if answer.status_code != 200 or first is None else (first - began) * 1000


async def victim(client: httpx.AsyncClient, seconds: float) -> list[float]:
    """Charlie's requests: a head of 2,000 tokens that stays, 400 fresh ones behind it, three at a time."""
    numbers, head = itertools.count(1_000_000), text(2000, 0)
    ends_at = time.monotonic() + seconds

    async def loop() -> list[float]:
        found = []
        while time.monotonic() < ends_at:
            messages = [{"role": "system", "content": head}, {"role": "user", "content": text(400, next(numbers))}]
            taken = await ttft_ms(client, CHARLIE_KEY, messages)
            assert taken is not None, "the victim is never refused"
            found.append(taken)
        return found

    return [taken for each in await asyncio.gather(*(loop() for _ in range(3))) for taken in each]


async def flood(client: httpx.AsyncClient, counts: dict[str, int]) -> None:
    """Alice's: 800 tokens that nobody sent before, twelve at a time, again at once whatever the answer."""
    numbers = itertools.count(2_000_000)

    async def loop() -> None:
        while True:
            served = await ttft_ms(client, ALICE_KEY, [{"role": "user", "content": text(800, next(numbers))}])
            counts["served" if served is not None else "refused"] += 1
            if served is None:
                await asyncio.sleep(0.1)  # The flood shares the test's event loop with the router.

    await asyncio.gather(*(loop() for _ in range(12)))


async def under_flood(router: RunningRouter, seconds: float) -> tuple[list[float], dict[str, int]]:
    counts = {"served": 0, "refused": 0}
    async with httpx.AsyncClient(base_url=router.url, timeout=60, trust_env=False) as attacker:
        attack = asyncio.create_task(flood(attacker, counts))
        await asyncio.sleep(1.5)  # What the attacker had saved up is spent.
        async with httpx.AsyncClient(base_url=router.url, timeout=60, trust_env=False) as client:
            found = await victim(client, seconds)
        attack.cancel()
        await asyncio.gather(attack, return_exceptions=True)
    return found, counts


def p95(samples: list[float]) -> float:
    return statistics.quantiles(samples, n=20)[-1]


@pytest.fixture
async def routers(start_router: StartRouter, workers: list[str]) -> AsyncIterator[dict[bool, RunningRouter]]:  # noqa: F811
    """Whether Alice has a budget → a router."""
    made = {}
    for limited in (True, False):
        snapshot = snapshot_for(workers)
        rate = BUDGET_TPS if limited else None
        grant = TenantGrant(prefill_tokens_per_s=rate, prefill_burst_tokens=int(rate) if rate else None)
        made[limited] = await start_router(
            msgspec.structs.replace(
                snapshot,
                tenants={**snapshot.tenants, "acme": grant},
                pools={"p": PoolPolicy(models=("sim",), block_size=BLOCK_SIZE)},
            )
        )
    yield made


async def test_a_flood_of_unique_prefixes_leaves_the_victims_p95_within_half_as_much_again(
    routers: dict[bool, RunningRouter],
) -> None:
    async with httpx.AsyncClient(base_url=routers[True].url, timeout=60, trust_env=False) as client:
        await victim(client, 1.0)
        alone = await victim(client, 4.0)
    fair, counts = await under_flood(routers[True], 5.0)
    unfair, free = await under_flood(routers[False], 3.0)
    print(
        f"p95 TTFT of {len(alone)} alone {p95(alone):.0f} ms, of {len(fair)} with a budget {p95(fair):.0f} ms "
        f"(attacker {counts}), of {len(unfair)} without {p95(unfair):.0f} ms (attacker {free})"
    )
    assert len(alone) >= 40 and len(fair) >= 40
    assert counts["refused"] > counts["served"] > 0, "the budget lets some of the flood through"
    assert p95(unfair) > 2 * p95(alone), "the flood is one that hurts"
    assert p95(fair) <= RATIO_MAX * p95(alone)

"""A tenth of the KV events is lost: replays make up for it, and without replays the router says what it does not know.

A11, on whole routers in exact mode.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from tests.router.conftest import RunningRouter, chat
from tests.router.exact_worker import ExactWorker
from tests.router.test_exact_mode import (  # noqa: F401 - fixtures
    exact_worker,
    exact_workers,
    folder_name,
    model_folder,
    page,
    start_exact,
    text,
    until,
)

TALKS, TURNS = 8, 12


async def hit_share(router: RunningRouter, *, seed: int) -> float:
    """Conversations that grow in turn; cached tokens ÷ prompt tokens. Every request must be answered."""
    draw = random.Random(seed)
    talks = [f"{seed} {number} " + text(60, seed=number) for number in range(TALKS)]
    cached = prompt = 0
    async with router.client() as client:
        for _ in range(TURNS):
            for number in draw.sample(range(TALKS), TALKS):
                talks[number] += " " + text(20, seed=len(talks[number]))
                answer = await client.post("/v1/chat/completions", json=chat(talks[number]))
                usage = answer.raise_for_status().json()["usage"]
                cached += usage["prompt_tokens_details"]["cached_tokens"]
                prompt += usage["prompt_tokens"]
    return cached / prompt


@pytest.fixture
async def four(model_folder: Path) -> Any:  # noqa: F811
    made = [await ExactWorker(model_folder).start() for _ in range(4)]
    yield made
    for worker in made:
        await worker.stop()


async def test_a_tenth_of_events_lost_costs_less_than_2_points_of_hits_with_replay_a11(
    start_exact: Any,  # noqa: F811
    four: list[ExactWorker],
) -> None:
    router = await start_exact(*four)
    await until(lambda: len(exact_workers(router)) == 4, "all workers are exact")
    whole = await hit_share(router, seed=1)
    for worker in four:
        worker.loses = 0.1
    with_losses = await hit_share(router, seed=2)
    assert sum(worker.lost for worker in four) >= 5
    assert whole > 0.6
    assert with_losses >= whole - 0.02
    await until(lambda: len(exact_workers(router)) == 4, "all workers are exact again")
    for number in range(12):
        answer = await router.post(chat(f"2 {number % TALKS} " + text(60, seed=number % TALKS)))
        explained = (await router.admin(f"/explain?request_id={answer.headers['x-request-id']}")).json()
        cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert (explained["exact"], explained["predicted_hit_tokens"]) == (True, cached), "0 wrong answers"
        await asyncio.sleep(0.05)


async def test_a_worker_whose_lost_events_nobody_can_replay_is_shown_as_degraded_a11(
    start_exact: Any,  # noqa: F811
    exact_worker: ExactWorker,  # noqa: F811
) -> None:
    router = await start_exact(exact_worker)
    await until(lambda: exact_workers(router) == ["p/w1"], "the worker is exact")
    exact_worker.forgets = True
    exact_worker.loses = 1.0
    await router.post(chat(text(100, seed=1)))
    exact_worker.loses = 0.0
    await router.post(chat(text(100, seed=2)))
    await until(lambda: page(router)["workers"]["p/w1"]["events"] == "degraded: truncated", "the hole is shown")
    assert exact_workers(router) == []
    assert (await router.post(chat(text(100, seed=1)))).status_code == 200

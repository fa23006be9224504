"""What a router tells of each namespace and tenant: requests under way, remembered blocks."""

from __future__ import annotations

import asyncio

from router.contract.telemetry import NAMES_TOLD_MAX, RouterState
from router.runtime import _largest
from tests.router.conftest import RunningRouter, chat
from tests.router.scripted_worker import DONE, ScriptedWorker, event, stream, usage_event

PROMPT = "The quick brown fox. " * 400


def _told(router: RunningRouter) -> RouterState:
    return router.runtime._state(router.runtime._started_at)


async def test_it_tells_how_many_requests_run_in_each_namespace(router: RunningRouter, worker: ScriptedWorker) -> None:
    assert _told(router).inflight_by_namespace == {}
    worker.script = stream(event("a"), event("b"), usage_event(), DONE, pause_s=0.2)
    running = asyncio.create_task(router.post(chat(PROMPT, stream=True)))
    await asyncio.sleep(0.2)  # the worker takes 0.8 s
    assert _told(router).inflight_by_namespace == {"acme/support": 1}
    await running
    assert _told(router).inflight_by_namespace == {}


async def test_it_tells_how_many_blocks_are_remembered_of_each_tenant(
    router: RunningRouter, worker: ScriptedWorker
) -> None:
    worker.script = stream(event("a"), usage_event(), DONE)
    await router.post(chat(PROMPT, stream=True))
    state = _told(router)
    assert state.index_blocks > 0
    assert state.index_blocks_by_tenant == {"acme": state.index_blocks}


def test_it_names_the_largest_and_never_more_than_the_bound() -> None:
    told = _largest({f"t{number}": number for number in range(NAMES_TOLD_MAX + 50)})
    assert len(told) == NAMES_TOLD_MAX and "t0" not in told and f"t{NAMES_TOLD_MAX + 49}" in told
    assert _largest({"idle": 0}) == {}

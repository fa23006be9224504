"""A router that nobody vouches for: namespaces that deny are refused and their streams end, others are served."""

from __future__ import annotations

import asyncio

from tests.router.conftest import CHARLIE_KEY, StartRouter, chat, snapshot_for
from tests.router.scripted_worker import DONE, ScriptedWorker, event, stream

LEASE_S = 0.6


async def test_it_refuses_and_ends_streams_when_the_lease_is_over(
    start_router: StartRouter, worker: ScriptedWorker
) -> None:
    router = await start_router(snapshot_for([worker.url], on_stale="deny"))
    table = router.runtime.table
    table.stale_deny_after_s = table._book._stale_deny_after_s = LEASE_S
    table.confirm_snapshot(lease_now=asyncio.get_running_loop().time())
    worker.script = stream(*[event(str(number)) for number in range(200)], DONE, pause_s=0.02)
    theirs, others = (
        asyncio.create_task(router.post(chat(stream=True), **keys)) for keys in ({}, {"key": CHARLIE_KEY})
    )
    began = asyncio.get_running_loop().time()
    answer = await theirs
    took_s = asyncio.get_running_loop().time() - began
    assert LEASE_S - 0.1 <= took_s <= LEASE_S + 0.6
    assert DONE not in answer.content and b"cannot confirm its access policy" in answer.content
    assert (await router.post(chat())).status_code == 503
    assert (await others).content.endswith(DONE)
    table.confirm_snapshot(lease_now=asyncio.get_running_loop().time())
    worker.script = stream(event("0"), DONE)
    assert (await router.post(chat(stream=True))).status_code == 200

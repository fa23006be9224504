"""`/explain`: every finished request by its id, and what would be decided for a body, with nothing reserved."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.router.conftest import ALICE_KEY, CHARLIE_KEY, RunningRouter, StartRouter, snapshot_for
from tests.router.scripted_worker import ScriptedWorker
from tests.surface.conftest import REQUESTS

LONG = "".join(f"{number} words of a long prompt. " for number in range(400))
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": LONG}]}


async def explain(router: RunningRouter, body: Any, *, key: str | None = None, **query: str) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(base_url=router.admin_url, trust_env=False) as client:
        return await client.post("/explain", params=query, content=json.dumps(body), headers=headers)


@pytest.fixture
async def pair(
    start_router: StartRouter, worker: ScriptedWorker, other_worker: ScriptedWorker
) -> tuple[RunningRouter, dict[str, ScriptedWorker]]:
    router = await start_router(snapshot_for([worker.url, other_worker.url]))
    return router, {"p/w1": worker, "p/w2": other_worker}


async def test_it_foretells_where_a_body_would_go(
    pair: tuple[RunningRouter, dict[str, ScriptedWorker]],
) -> None:
    router, workers = pair
    await router.post(CHAT)
    holder = next(name for name, each in workers.items() if each.asked)
    page = (await explain(router, CHAT, namespace="acme/support")).json()
    assert (page["worker"], page["reason"]) == (holder, "prefix")
    assert {each["worker"] for each in page["candidates"]} == set(workers)
    assert page["predicted_hit_tokens"] > 0 and page["sentence"].startswith(holder.rpartition("/")[2])
    assert (await explain(router, CHAT, key=ALICE_KEY)).json()["worker"] == holder


async def test_it_reserves_nothing_and_asks_no_worker(pair: tuple[RunningRouter, dict[str, ScriptedWorker]]) -> None:
    router, workers = pair
    before = router.runtime.table.state(now=0.0)
    for _ in range(5):
        assert (await explain(router, CHAT, namespace="acme/support")).status_code == 200
    after = router.runtime.table.state(now=0.0)
    assert (after.worker_outstanding, after.index_blocks) == (before.worker_outstanding, before.index_blocks)
    assert not any(each.asked for each in workers.values())


async def test_it_sees_no_prefix_of_another_namespace(pair: tuple[RunningRouter, dict[str, ScriptedWorker]]) -> None:
    router, _ = pair
    await router.post(CHAT)
    page = (await explain(router, CHAT, key=CHARLIE_KEY)).json()
    assert page["namespace"] == "zeta/other" and page["predicted_hit_tokens"] == 0


@pytest.mark.parametrize("path", REQUESTS)
async def test_it_explains_bodies_of_every_endpoint(router: RunningRouter, path: str) -> None:
    page = await explain(router, REQUESTS[path], namespace="acme/support", path=path)
    assert page.status_code == 200 and page.json()["worker"] == "p/w1"


@pytest.mark.parametrize(
    ("body", "query", "status"),
    [
        ({"model": "m"}, {"namespace": "acme/support"}, 400),
        ({**CHAT, "model": "other"}, {"namespace": "acme/support"}, 404),
        (CHAT, {"namespace": "acme/absent"}, 404),
        (CHAT, {}, 401),
        (CHAT, {"namespace": "acme/support", "path": "/v1/models"}, 400),
    ],
)
async def test_it_says_how_a_body_would_be_refused(
    router: RunningRouter, body: Any, query: dict[str, str], status: int
) -> None:
    page = await explain(router, body, **query)
    assert page.status_code == status and page.json()["refused"]["status"] == status


async def test_it_explains_any_recent_request_and_marks_what_is_recomputed(router: RunningRouter) -> None:
    answer = await router.post({**CHAT, "user": "a secret session"})
    page = (await router.admin(f"/explain?request_id={answer.headers['x-request-id']}")).json()
    assert (page["worker"], page["outcome"], page["status"], page["candidates"]) == ("p/w1", "ok", 200, [])
    assert page["recomputed"]["candidates"][0]["worker"] == "p/w1"
    assert "secret" not in json.dumps(page) and "words of" not in json.dumps(page)


async def test_it_needs_a_length_and_bounds_it(router: RunningRouter) -> None:
    async with httpx.AsyncClient(base_url=router.admin_url, trust_env=False) as client:
        assert (await client.post("/state", content=b"{}")).status_code == 405
    for length, status in (
        (b"content-length: 10000000000\r\n", b"413"),
        (b"", b"411"),
        (b"content-length: x\r\n", b"411"),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", router.settings.router_admin_port)
        writer.write(b"POST /explain HTTP/1.1\r\nhost: a\r\n" + length + b"\r\n")
        assert (await reader.read(13)).endswith(status + b" ")
        writer.close()

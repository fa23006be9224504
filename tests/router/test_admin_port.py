"""The admin port tells health, readiness, metrics, state and why a request went where it went."""

from __future__ import annotations

import httpx
from prometheus_client.parser import text_string_to_metric_families

from router.contract.telemetry import Candidate
from tests.router.conftest import RunningRouter, StartRouter, chat, snapshot_for
from tests.router.scripted_worker import DONE, ScriptedWorker, answer_json, event, stream, usage_event


async def _samples(router: RunningRouter) -> dict:
    router.runtime.telemetry.close_second(0)
    page = await router.admin("/metrics")
    assert page.status_code == 200
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page.text)
        for sample in family.samples
    }


async def test_it_counts_requests_tokens_and_times(router: RunningRouter, worker: ScriptedWorker) -> None:
    worker.script = stream(event("a"), usage_event(), DONE)
    await router.post(chat(stream=True))
    worker.script = answer_json({"error": "x"}, status=500)
    await router.post(chat())
    samples = await _samples(router)
    who = (("model", "m"), ("tenant", "acme"))
    assert samples["tidemark_router_requests_total", (who[0], ("outcome", "ok"), who[1])] == 1
    assert samples["tidemark_router_requests_total", (who[0], ("outcome", "upstream_error"), who[1])] == 1
    assert samples["tidemark_prefix_hit_tokens_total", who] == 64
    assert samples["tidemark_prefix_query_tokens_total", who] == 100
    assert samples["tidemark_ttft_seconds_count", (("cache", "hit"),)] == 1
    assert samples["tidemark_router_decision_seconds_count", ()] == 2
    assert samples["tidemark_policy_revision", (("router", "r1"),)] == 1
    assert samples["tidemark_policy_epoch", (("router", "r1"),)] == 1
    assert samples["tidemark_worker_state", (("state", "ready"), ("worker", "p/w1"))] == 1


async def test_it_opens_no_series_for_names_clients_invent(router: RunningRouter) -> None:
    before = len(await _samples(router))
    for i in range(20):
        await router.post({**chat(), "model": f"invented-{i}"})
    samples = await _samples(router)
    assert not any("invented" in str(labels) for _, labels in samples)
    assert len(samples) <= before + 1


async def test_it_only_answers_gets_of_known_pages(router: RunningRouter) -> None:
    async with httpx.AsyncClient(base_url=router.admin_url, trust_env=False) as client:
        assert (await client.post("/state")).status_code == 405
        assert (await client.get("/")).status_code == 404
        assert (await client.get("/explain?request_id=unknown")).status_code == 404


async def test_it_explains_a_request_that_failed(router: RunningRouter, worker: ScriptedWorker) -> None:
    worker.script = answer_json({"error": "x"}, status=500)
    answer = await router.post(chat())
    router.runtime.telemetry.close_second(0)
    page = (await router.admin(f"/explain?request_id={answer.headers['x-request-id']}")).json()
    assert (page["worker"], page["outcome"]) == ("p/w1", "upstream_error") and page["sentence"]


async def test_every_term_of_a_candidate_is_named(router: RunningRouter) -> None:
    answer = await router.post(chat())
    page = (await router.admin(f"/explain?request_id={answer.headers['x-request-id']}")).json()
    (candidate,) = page["recomputed"]["candidates"]
    assert set(candidate) == set(Candidate.__struct_fields__)
    assert (candidate["transfer_ms"], candidate["excluded"], candidate["kv_use"]) == (0.0, "", None)
    assert candidate["matched_tokens"] == 0
    async with httpx.AsyncClient(base_url=router.admin_url, trust_env=False) as client:
        several = {"model": "m", "prompt": ["a", "b"]}
        page = (await client.post("/explain?path=/v1/completions&namespace=acme/support", json=several)).json()
    assert page["blocks"] is None and page["candidates"][0]["matched_tokens"] is None


async def test_a_sample_without_candidates_says_so(router: RunningRouter, worker: ScriptedWorker) -> None:
    worker.script = answer_json({"error": "x"}, status=500)
    answer = await router.post(chat())
    router.runtime.telemetry.close_second(0)
    path = f"/explain?request_id={answer.headers['x-request-id']}"
    assert (await router.admin(path)).json()["recomputed"]["candidates"]
    router.runtime._explainer._recent._pasts.clear()
    page = (await router.admin(path)).json()
    assert page["candidates"] == [] and "only a sample" in page["candidates_missing"]
    assert (page["predicted_hit_tokens"], page["cached_tokens"]) == (0, None)


async def test_it_drains_before_it_stops(start_router: StartRouter, worker: ScriptedWorker) -> None:
    import asyncio

    router = await start_router(snapshot_for([worker.url]), router_drain_s=5.0)
    worker.script = stream(*[event(str(i)) for i in range(10)], DONE, pause_s=0.1)
    request = asyncio.create_task(router.post(chat(stream=True)))
    while not worker.asked:  # noqa: ASYNC110 - the condition is in another process or object
        await asyncio.sleep(0.01)
    router.stop.set()
    await asyncio.sleep(0.05)
    assert (await router.admin("/readyz")).status_code == 503
    answer = await request
    assert answer.content.endswith(DONE)
    await asyncio.wait_for(router.task, 3)


async def test_it_counts_unknown_fields_and_templates(start_router: StartRouter, worker: ScriptedWorker) -> None:
    router = await start_router(snapshot_for([worker.url], templates=("greeting@1",)))
    await router.post({**chat(), "brand_new": 1, "newer": 2}, headers={"x-tidemark-template": "greeting@1"})
    await router.post(chat(), headers={"x-tidemark-template": "greeting@9"})
    samples = await _samples(router)
    assert samples["tidemark_router_unknown_fields_total", ()] == 2
    assert samples["tidemark_router_templates_ignored_total", ()] == 1

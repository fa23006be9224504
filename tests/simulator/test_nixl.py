"""Workers with `--nixl` hand KV to each other as real ones do (`tests/vllm/test_nixl_connector.py`)."""

from __future__ import annotations

from typing import Any

import pytest

from simulator import nixl
from simulator.engine import EngineLimits
from tests.simulator.conftest import LiveWorker, StartWorker

LONG = "a system prompt that is long enough for many blocks of sixteen tokens " * 20
OFFER = {"do_remote_decode": True, "do_remote_prefill": False}


@pytest.fixture
async def pair(start_worker: StartWorker) -> tuple[LiveWorker, LiveWorker]:
    return await start_worker(nixl=True), await start_worker(nixl=True)


async def offered(worker: LiveWorker, **fields: Any) -> dict[str, Any]:
    answer = await worker.chat(LONG, max_tokens=1, kv_transfer_params=OFFER, **fields)
    return dict(answer.raise_for_status().json()["kv_transfer_params"])


async def test_a_worker_computes_the_last_token_of_what_it_pulled(pair: tuple[LiveWorker, LiveWorker]) -> None:
    first, second = pair
    whole = (await first.chat(LONG)).json()
    params = await offered(first)
    before = second.app.engine.counts.hit_tokens
    answer = (await second.chat(LONG, kv_transfer_params=params)).json()
    assert answer["choices"] == whole["choices"]
    details, prompt = answer["usage"]["prompt_tokens_details"], answer["usage"]["prompt_tokens"]
    assert details["cached_tokens"] == params["remote_prefill_cached_tokens"] == (prompt - 1) // 16 * 16
    assert second.app.engine.counts.hit_tokens == before and second.app.handover.pulled_tokens == prompt
    assert await second.cached_tokens(LONG) == (prompt - 1) // 16 * 16, "and keeps it"


async def test_it_knows_no_salt(pair: tuple[LiveWorker, LiveWorker]) -> None:
    first, second = pair
    params = await offered(first, cache_salt="one")
    assert (await second.chat(LONG, cache_salt="two", kv_transfer_params=params)).status_code == 200
    assert second.app.handover.pulled_tokens > 300
    assert await second.cached_tokens(LONG, cache_salt="one") == 0


async def test_an_offer_keeps_its_blocks_until_it_is_pulled(pair: tuple[LiveWorker, LiveWorker]) -> None:
    first, second = pair
    params = await offered(first)
    assert first.app.engine.cache.pinned_share > 0
    assert (await second.chat(LONG, kv_transfer_params=params)).status_code == 200
    assert first.app.engine.cache.pinned_share == second.app.engine.cache.pinned_share == 0
    assert (await second.chat("other " + LONG, kv_transfer_params=params)).status_code == 500, "once"


async def test_an_offer_that_nobody_pulls_ends(
    pair: tuple[LiveWorker, LiveWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nixl, "LEASE_S", 0.0)
    params = await offered(pair[0])
    assert (await pair[1].chat(LONG, kv_transfer_params=params)).status_code == 500
    assert pair[0].app.engine.cache.pinned_share == 0


async def test_offers_are_bounded(start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nixl, "OFFERS_MAX", 2)
    worker = await start_worker(nixl=True, limits=EngineLimits(blocks=4096))
    for number in range(4):
        await worker.chat(f"{number} {LONG}", max_tokens=1, kv_transfer_params=OFFER)
    assert len(worker.app.handover._offers) == 2


@pytest.mark.parametrize(
    "wrong", [{"remote_request_id": "x"}, {"remote_engine_id": "x"}, {"remote_port": 1}, {"remote_host": "no host"}]
)
async def test_a_pull_that_fails_fails_the_request(pair: tuple[LiveWorker, LiveWorker], wrong: dict[str, Any]) -> None:
    params = await offered(pair[0]) | wrong
    answer = await pair[1].chat(LONG, kv_transfer_params=params)
    assert (answer.status_code, answer.json()["error"]["message"]) == (500, "KV load failed")
    stream = await pair[1].chat(LONG, stream=True, kv_transfer_params=params)
    assert stream.status_code == 200 and stream.text.startswith('data: {"error":') and "[DONE]" in stream.text


async def test_it_drops_offers_when_told_to(pair: tuple[LiveWorker, LiveWorker]) -> None:
    await pair[0].fault(drop_offers=True)
    params = await offered(pair[0])
    assert (await pair[1].chat(LONG, kv_transfer_params=params)).status_code == 500


async def test_a_worker_without_the_connector_reads_none_of_it(worker: LiveWorker) -> None:
    answer = await worker.chat(LONG, kv_transfer_params=OFFER)
    assert answer.json()["kv_transfer_params"] is None
    assert (await worker.chat(LONG, kv_transfer_params={"do_remote_prefill": True})).status_code == 200


async def test_parameters_of_another_kind_are_refused(pair: tuple[LiveWorker, LiveWorker]) -> None:
    assert (await pair[0].chat(LONG, kv_transfer_params={"do_remote_decode": "yes"})).status_code == 400
    assert (await pair[0].chat(LONG, kv_transfer_params="yes")).status_code == 400

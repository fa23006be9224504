"""What a router records of its traffic: enough to know what was shared, and nothing of what was said."""

from __future__ import annotations

import msgspec

from router.contract.recorded import ANCHOR_BYTES, RecordedRequest, anchor_positions
from router.contract.snapshot import CacheDomain
from router.contract.telemetry import decode_shipment
from tests.router.conftest import ALICE_SALT, CHARLIE_KEY, RunningRouter, StartRouter, chat, snapshot_for
from tests.router.scripted_worker import DONE, ScriptedWorker, answer_json, event, stream, usage_event

SECRET = "the merger closes on the fifth of March; "
PROMPT = SECRET * 100
DOMAIN = "group:desk"
NO_VALKEY = "redis://127.0.0.1:1/0"
"""Shipments are made and wait."""


def _shipped(router: RunningRouter) -> tuple[bytes, list[RecordedRequest]]:
    """All bytes that would leave for the control plane, and the recorded requests in them."""
    telemetry = router.runtime.telemetry
    telemetry.close_second(1_700_000_000.0)
    entries = list(telemetry._buffer)
    return b"".join(entries), [each for entry in entries for each in decode_shipment(entry).recorded]


async def _ask(router: RunningRouter, text: str, *, key: str | None = None) -> None:
    answer = await router.post(chat(text, stream=True), **({"key": key} if key else {}))
    assert answer.status_code == 200


async def _recorded_of(router: RunningRouter, worker: ScriptedWorker, *asked: tuple[str, str | None]):
    usage = {"prompt_tokens": 1000, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 400}}
    worker.script = stream(event("a"), usage_event(usage), DONE)
    for text, key in asked:
        await _ask(router, text, key=key)
    return _shipped(router)


async def test_a_record_says_how_long_and_what_was_shared_and_no_byte_of_the_text(
    start_router: StartRouter, worker: ScriptedWorker
) -> None:
    router = await start_router(snapshot_for([worker.url]), redis_url=NO_VALKEY)
    data, (first, second) = await _recorded_of(
        router, worker, (PROMPT, None), (PROMPT[:2000] + "and other words " * 100, None)
    )
    assert (first.tenant, first.namespace, first.pool, first.worker) == ("acme", "acme/support", "p", "p/w1")
    assert (first.prompt_tokens, first.output_tokens, first.cached_tokens, first.share) == (1000, 7, 400, 1.0)
    assert first.ttft_ms is not None and len(PROMPT) < first.text_bytes < len(PROMPT) + 200
    assert len(first.anchors) == ANCHOR_BYTES * len(anchor_positions(first.text_bytes // 512))
    shared = sum(one == other for one, other in zip(_split(first), _split(second), strict=False))
    assert shared == 2000 // 512, "the last block of the common text is not whole"
    assert b"merger" not in data and b"March" not in data
    assert ALICE_SALT.encode() not in data


async def test_equal_texts_of_two_tenants_share_no_anchor(start_router: StartRouter, worker: ScriptedWorker) -> None:
    router = await start_router(snapshot_for([worker.url]), redis_url=NO_VALKEY)
    _, (alice, again, charlie) = await _recorded_of(
        router, worker, (PROMPT, None), (PROMPT, None), (PROMPT, CHARLIE_KEY)
    )
    assert _split(alice) == _split(again) and alice.unit == again.unit
    assert not set(_split(alice)) & set(_split(charlie)) and alice.unit != charlie.unit


async def test_a_rotation_of_the_salt_leaves_nothing_in_common(
    start_router: StartRouter, worker: ScriptedWorker
) -> None:
    before = await start_router(snapshot_for([worker.url]), redis_url=NO_VALKEY)
    _, (old,) = await _recorded_of(before, worker, (PROMPT, None))
    after = await start_router(snapshot_for([worker.url], generation_nonce="nonce-b"), redis_url=NO_VALKEY)
    _, (new,) = await _recorded_of(after, worker, (PROMPT, None))
    assert not set(_split(old)) & set(_split(new))


async def test_in_a_domain_that_tenants_share_their_records_share_nothing_all_the_same(
    start_router: StartRouter, worker: ScriptedWorker
) -> None:
    snapshot = snapshot_for([worker.url], domain=DOMAIN)
    snapshot.namespaces["zeta/other"] = msgspec.structs.replace(snapshot.namespaces["zeta/other"], domain=DOMAIN)
    snapshot.domains[DOMAIN] = CacheDomain("group", "nonce-d")
    router = await start_router(snapshot, redis_url=NO_VALKEY)
    _, (alice, charlie) = await _recorded_of(router, worker, (PROMPT, None), (PROMPT, CHARLIE_KEY))
    salts = {asked.json["cache_salt"] for asked in worker.asked}
    assert len(salts) == 1, "the workers share"
    assert not set(_split(alice)) & set(_split(charlie))


async def test_what_reached_no_worker_and_what_is_switched_off_is_not_recorded(
    start_router: StartRouter, worker: ScriptedWorker
) -> None:
    router = await start_router(snapshot_for([worker.url]), redis_url=NO_VALKEY)
    assert (await router.post({"model": "none", "messages": []})).status_code in (400, 404)
    assert _shipped(router)[1] == []
    off = await start_router(snapshot_for([worker.url]), redis_url=NO_VALKEY, router_recorded_per_s=0)
    _, none = await _recorded_of(off, worker, (PROMPT, None))
    assert none == []


async def test_what_the_worker_refused_is_not_recorded(start_router: StartRouter, worker: ScriptedWorker) -> None:
    router = await start_router(snapshot_for([worker.url]), redis_url=NO_VALKEY)
    worker.script = answer_json({"error": {"message": "too long"}}, status=400)
    assert (await router.post(chat(PROMPT))).status_code == 400
    assert _shipped(router)[1] == []


async def test_an_answer_without_usage_is_unknown_and_no_miss(
    start_router: StartRouter, worker: ScriptedWorker
) -> None:
    router = await start_router(snapshot_for([worker.url]), redis_url=NO_VALKEY)
    worker.script = answer_json({"choices": []})
    assert (await router.post(chat(PROMPT))).status_code == 200
    (record,) = _shipped(router)[1]
    assert record.cached_tokens is None and record.ttft_ms is None and record.prompt_tokens > 0


async def test_records_are_dropped_and_counted_while_the_control_plane_cannot_be_reached(
    start_router: StartRouter, worker: ScriptedWorker
) -> None:
    router = await start_router(snapshot_for([worker.url]), redis_url=NO_VALKEY)
    for second in range(60):
        router.runtime.telemetry.close_second(float(second))
    _, none = await _recorded_of(router, worker, (PROMPT, None))
    assert none == []
    assert sum(decode_shipment(entry).recorded_dropped for entry in router.runtime.telemetry._buffer) == 1


def _split(request: RecordedRequest) -> list[bytes]:
    data = request.anchors
    return [data[at : at + ANCHOR_BYTES] for at in range(0, len(data), ANCHOR_BYTES)]

"""A running router takes its variants, ends overrides by its own clock, and tells of breakers without their text."""

from __future__ import annotations

import asyncio
import time

import msgspec

from router.contract.snapshot import PolicySnapshot, PoolValues, Variant, encode_document
from router.contract.telemetry import encode_shipment
from router.core.variants import place
from tests.router.conftest import StartRouter, chat, signed, snapshot_for
from tests.router.scripted_worker import ScriptedWorker


def _with(snapshot: PolicySnapshot, *variants: Variant) -> bytes:
    return encode_document(signed(msgspec.structs.replace(snapshot, variants=variants)))


async def test_an_override_ends_without_a_word_from_the_control_plane(
    start_router: StartRouter, worker: ScriptedWorker
) -> None:
    until = time.time() + 1.0
    override = Variant("override-1", until=until, pools={"p": PoolValues(spill_outstanding=3)})
    router = await start_router(None, document=_with(snapshot_for([worker.url]), override))

    def red_line() -> int:
        return next(iter(router.runtime.table._fleet.pools.values())).policy.spill_outstanding

    assert red_line() == 3
    assert (await router.admin("/state")).json()["snapshot"]["variants"] == ["override-1"]
    async with asyncio.timeout(3):
        while red_line() == 3:  # noqa: ASYNC110 - the router's own sweep ends it
            await asyncio.sleep(0.05)
    assert time.time() >= until
    assert (await router.admin("/state")).json()["snapshot"]["variants"] == []
    assert (await router.post(chat())).status_code == 200


async def test_a_router_takes_a_roll_out_by_its_own_place(start_router: StartRouter, worker: ScriptedWorker) -> None:
    share = place("rollout-1", "r1")
    for above, below in ((share + 1e-9, True), (share, False)):
        variant = Variant("rollout-1", share=above, pools={"p": PoolValues(virtual_nodes=7)})
        router = await start_router(None, document=_with(snapshot_for([worker.url]), variant))
        state = router.runtime._state(time.time())
        assert (state.variants == ["rollout-1"]) is below


async def test_a_clock_in_front_of_a_shared_prompt_is_told_by_place_and_kind(
    start_router: StartRouter, worker: ScriptedWorker
) -> None:
    router = await start_router(snapshot_for([worker.url]))
    router.runtime.telemetry.close_second = lambda at: None  # type: ignore[method-assign] # the test takes the rows
    rules = "\n".join(f"Rule {number}: never sell without a receipt, and cite the article." for number in range(40))
    shipped = []
    for minute in range(3):
        answer = await router.post(chat(f"Current time: 2026-03-01 14:0{minute}:00 MARKER-{minute}\n{rules}"))
        assert answer.status_code == 200
        breakers = router.runtime.telemetry._breakers
        assert breakers is not None
        shipped += breakers.take()
    (broken,) = {row.kind: row for row in shipped if row.kind}.values()
    assert (broken.kind, broken.namespace, broken.pool) == ("clock", "acme/support", "p")
    assert sum(row.prompts for row in shipped if not row.kind) == 3
    assert b"MARKER" not in msgspec.msgpack.encode(shipped)


def test_a_shipment_carries_them() -> None:
    from router.contract.telemetry import PrefixBreaks, Shipment, decode_shipment

    row = PrefixBreaks("acme/a", "p", kind="uuid", prompts=2)
    assert decode_shipment(encode_shipment(Shipment("r1", "b", 1, 1.0, breaks=[row]))).breaks == [row]

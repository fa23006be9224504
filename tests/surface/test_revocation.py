"""A snapshot that takes a key, namespace or tenant away ends what runs under it, and nothing else."""

from __future__ import annotations

import asyncio

import httpx
import msgspec
import pytest

from router.contract.snapshot import PolicySnapshot
from router.core.model import Grant
from router.core.revocation import refusal_of
from tests.router.conftest import ALICE_ID, CHARLIE_KEY, RunningRouter, chat, signed, snapshot_for
from tests.router.scripted_worker import DONE, ScriptedWorker, event, hang, stream
from tests.surface.conftest import MESSAGE_START, REQUESTS


def _without(snapshot: PolicySnapshot, what: str) -> PolicySnapshot:
    keys, namespaces, tenants = dict(snapshot.keys), dict(snapshot.namespaces), dict(snapshot.tenants)
    replace = msgspec.structs.replace
    if what == "key gone":
        del keys[ALICE_ID]
    elif what == "key revoked":
        keys[ALICE_ID] = replace(keys[ALICE_ID], status="revoked")
    elif what == "key expired":
        keys[ALICE_ID] = replace(keys[ALICE_ID], expires_at=1.0)
    elif what == "namespace suspended":
        namespaces["acme/support"] = replace(namespaces["acme/support"], status="suspended")
    elif what == "tenant revoked":
        tenants["acme"] = replace(tenants["acme"], status="revoked")
    elif what == "salt rotated":
        namespaces["acme/support"] = replace(namespaces["acme/support"], generation=2, generation_nonce="nonce-b")
    return replace(snapshot, keys=keys, namespaces=namespaces, tenants=tenants)


TAKEN = ("key gone", "key revoked", "key expired", "namespace suspended", "tenant revoked")


def _apply(router: RunningRouter, snapshot: PolicySnapshot) -> None:
    router.runtime._apply_snapshot(signed(snapshot, version=2, epoch=2), snapshot)


@pytest.mark.parametrize("what", TAKEN)
async def test_it_ends_running_streams(router: RunningRouter, worker: ScriptedWorker, what: str) -> None:
    worker.script = stream(*[event(str(number)) for number in range(200)], DONE, pause_s=0.05)
    request = asyncio.create_task(router.post(chat(stream=True)))
    while router.runtime.service.inflight == 0 or not worker.asked:  # noqa: ASYNC110 - the condition is elsewhere
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.15)
    _apply(router, _without(snapshot_for([worker.url]), what))
    answer = await asyncio.wait_for(request, 1.0)
    assert answer.content.startswith(event("0")) and DONE not in answer.content
    assert b'"code":"invalid_api_key"' in answer.content
    assert router.runtime.service.inflight == 0
    assert router.runtime.table.state(now=0.0).worker_outstanding == {"p/w1": 0}


async def test_it_ends_requests_without_an_answer_as_those_of_a_wrong_key(
    router: RunningRouter, worker: ScriptedWorker
) -> None:
    worker.script = hang
    request = asyncio.create_task(router.post(chat()))
    while not worker.asked:  # noqa: ASYNC110 - the condition is elsewhere
        await asyncio.sleep(0.01)
    wrong = await router.post(chat(), key="tm_none")
    _apply(router, _without(snapshot_for([worker.url]), "key revoked"))
    answer = await asyncio.wait_for(request, 1.0)
    assert (answer.status_code, answer.json()) == (wrong.status_code, wrong.json())


async def test_it_leaves_everybody_else_alone(router: RunningRouter, worker: ScriptedWorker) -> None:
    worker.script = stream(*[event(str(number)) for number in range(8)], DONE, pause_s=0.05)
    request = asyncio.create_task(router.post(chat(stream=True), key=CHARLIE_KEY))
    while not worker.asked:  # noqa: ASYNC110 - the condition is elsewhere
        await asyncio.sleep(0.01)
    _apply(router, _without(snapshot_for([worker.url]), "tenant revoked"))
    answer: httpx.Response = await request
    assert answer.content.endswith(DONE)


@pytest.mark.parametrize(("what", "granted"), [*((what, False) for what in TAKEN), ("salt rotated", True), ("", True)])
def test_it_knows_what_takes_access_away(what: str, granted: bool) -> None:
    snapshot = snapshot_for(["http://127.0.0.1:9"])
    namespace = snapshot.namespaces["acme/support"]
    grant = Grant(ALICE_ID, "acme", "acme/support", namespace, "p", "m", "salt")  # type: ignore[arg-type]
    assert (refusal_of(grant, _without(snapshot, what), now=2.0) is None) is granted


async def test_it_ends_a_stream_of_messages_in_its_own_words(router: RunningRouter, worker: ScriptedWorker) -> None:
    worker.script = stream(MESSAGE_START, MESSAGE_START, pause_s=2.0)
    request = asyncio.create_task(router.post({**REQUESTS["/v1/messages"], "stream": True}, path="/v1/messages"))
    while not worker.asked:  # noqa: ASYNC110 - the condition is elsewhere
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.15)
    _apply(router, _without(snapshot_for([worker.url]), "key revoked"))
    answer = await asyncio.wait_for(request, 1.0)
    assert b'event: error\ndata: {"type":"error","error":{"type":"authentication_error"' in answer.content

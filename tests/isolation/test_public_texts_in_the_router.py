"""Shared-public (S3.11): a request that is nothing but an allowed text shares a cache with all; nothing else does."""

from __future__ import annotations

import json

import msgspec
import pytest

from router.contract.public import public_digest, public_key
from router.contract.snapshot import PolicySnapshot
from tests.router.conftest import (
    ALICE_KEY,
    ALICE_SALT,
    CHARLIE_KEY,
    FLEET,
    StartRouter,
    snapshot_for,
    start_router,  # noqa: F401
    worker,  # noqa: F401
)
from tests.router.scripted_worker import ScriptedWorker

TEXT = "You answer for the city's library. Opening hours are on the door. " * 20
PUBLIC_SALT = FLEET.domain_salt("public", "public")
SYSTEM = {"role": "system", "content": TEXT}


def open_to_all(url: str, *, allowed: bool = True, members: tuple[str, ...] = ("acme", "zeta")) -> PolicySnapshot:
    snapshot = snapshot_for([url])
    namespaces = {
        name: msgspec.structs.replace(policy, shares_public=policy.tenant in members)
        for name, policy in snapshot.namespaces.items()
    }
    digest = public_digest(public_key(FLEET), role="system", text=TEXT.encode())
    return msgspec.structs.replace(snapshot, namespaces=namespaces, public_texts=(digest,) if allowed else ())


def body(*messages: dict[str, object], **fields: object) -> bytes:
    """As a client writes it that leaves no spaces."""
    return json.dumps({"model": "m", "messages": list(messages), **fields}, separators=(",", ":")).encode()


async def salts(start, worker: ScriptedWorker, snapshot: PolicySnapshot, *asked: tuple[str, bytes]) -> list[str]:  # noqa: F811
    router = await start(snapshot)
    for key, content in asked:
        assert (await router.post(content, key=key)).status_code == 200
    return [each.json["cache_salt"] for each in worker.asked]


async def test_two_tenants_share_a_public_text(start_router: StartRouter, worker: ScriptedWorker) -> None:  # noqa: F811
    asked = [(ALICE_KEY, body(SYSTEM)), (CHARLIE_KEY, body(SYSTEM, max_tokens=5, temperature=0.5))]
    assert await salts(start_router, worker, open_to_all(worker.url), *asked) == [PUBLIC_SALT] * 2


NOT_NOTHING_BUT = {
    "a user's message behind it": body(SYSTEM, {"role": "user", "content": "and my case?"}),
    "a user's message before it": body({"role": "user", "content": "x"}, SYSTEM),
    "one character more": body({"role": "system", "content": TEXT + "."}),
    "one character less": body({"role": "system", "content": TEXT[:-1]}),
    "another role": body({"role": "user", "content": TEXT}),
    "tools": body(SYSTEM, tools=[{"type": "function", "function": {"name": "f"}}]),
    "template settings": body(SYSTEM, chat_template_kwargs={"secret": "s"}),
    "documents": body(SYSTEM, documents=[{"text": "mine"}]),
    "an own chat template": body(SYSTEM, chat_template="{{ messages }} mine"),
    "parts": body({"role": "system", "content": [{"type": "text", "text": TEXT}]}),
    "a name": body({**SYSTEM, "name": "mine"}),
}


@pytest.mark.parametrize("what", NOT_NOTHING_BUT)
async def test_whatever_a_user_adds_stays_private(
    start_router: StartRouter,  # noqa: F811
    worker: ScriptedWorker,  # noqa: F811
    what: str,
) -> None:
    assert await salts(start_router, worker, open_to_all(worker.url), (ALICE_KEY, NOT_NOTHING_BUT[what])) == [
        ALICE_SALT
    ]


async def test_a_namespace_that_takes_no_part_keeps_its_own_salt(
    start_router: StartRouter,  # noqa: F811
    worker: ScriptedWorker,  # noqa: F811
) -> None:
    found = await salts(start_router, worker, open_to_all(worker.url, members=("zeta",)), (ALICE_KEY, body(SYSTEM)))
    assert found == [ALICE_SALT]


async def test_a_text_that_is_withdrawn_is_private_again(
    start_router: StartRouter,  # noqa: F811
    worker: ScriptedWorker,  # noqa: F811
) -> None:
    found = await salts(start_router, worker, open_to_all(worker.url, allowed=False), (ALICE_KEY, body(SYSTEM)))
    assert found == [ALICE_SALT]


async def test_the_index_and_the_bound_follow_the_shared_cache(
    start_router: StartRouter,  # noqa: F811
    worker: ScriptedWorker,  # noqa: F811
) -> None:
    """Charlie's hit on what Alice sent is predicted, and is no violation."""
    router = await start_router(open_to_all(worker.url))
    for key in (ALICE_KEY, CHARLIE_KEY):
        await router.post(body(SYSTEM), key=key)
    router.runtime.telemetry.close_second(0)
    totals = router.runtime.telemetry.totals
    assert totals.predicted_hit_tokens["m", "zeta"] > 0 and totals.violations == 0

"""Shared cache domains on a real worker: members hit each other's prompts, nobody else does, and leaving ends it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from router.contract.public import public_digest, public_key
from router.contract.snapshot import CacheDomain, PolicySnapshot, PoolPolicy
from tests.router.conftest import ALICE_KEY, CHARLIE_KEY, FLEET, RunningRouter, signed, snapshot_for, start_router  # noqa: F401
from tests.vllm.conftest import WORKER_URLS, prompt_of

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(200)]


def shared(*, members: tuple[str, ...] = ("acme", "zeta"), texts: tuple[str, ...] = ()) -> PolicySnapshot:
    """Tenants in one trust group, and public texts."""
    snapshot = snapshot_for([WORKER_URLS[0]])
    namespaces = {
        name: msgspec.structs.replace(
            policy, domain="group:g" if policy.tenant in members else "", shares_public=bool(texts)
        )
        for name, policy in snapshot.namespaces.items()
    }
    digests = [public_digest(public_key(FLEET), role="user", text=text.encode()) for text in texts]
    return msgspec.structs.replace(
        snapshot, namespaces=namespaces, domains={"group:g": CacheDomain("group", "nonce")},
        pools={"p": PoolPolicy(models=("tiny",), block_size=32)}, public_texts=tuple(digests),
    )  # fmt: skip


async def cached(router: RunningRouter, key: str, text: str) -> int:
    body = {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 1}
    answer = await router.post(msgspec.json.encode(body), key=key)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


async def test_members_of_a_trust_group_hit_each_others_prompts_until_one_leaves(start_router: Any) -> None:  # noqa: F811
    router: RunningRouter = await start_router(shared())
    text = prompt_of(300, seed=41)
    assert await cached(router, ALICE_KEY, text) == 0
    assert await cached(router, CHARLIE_KEY, text) > 200
    left = shared(members=("acme",))
    router.runtime.table.apply_snapshot(signed(left, version=2), left, now=2_000_000_000.0)
    assert await cached(router, CHARLIE_KEY, text) == 0, "who left meets an empty cache"
    assert await cached(router, ALICE_KEY, text) == 0, "and left nothing behind"
    assert await cached(router, ALICE_KEY, text) > 200
    router.runtime.telemetry.close_second(0)
    assert router.runtime.telemetry.totals.violations == 0


async def test_only_a_request_that_is_nothing_but_a_public_text_hits_anothers(start_router: Any) -> None:  # noqa: F811
    text = prompt_of(300, seed=42)
    router: RunningRouter = await start_router(shared(members=(), texts=(text,)))
    assert await cached(router, ALICE_KEY, text) == 0
    assert await cached(router, CHARLIE_KEY, text) > 200
    assert await cached(router, CHARLIE_KEY, text + " and mine") == 0

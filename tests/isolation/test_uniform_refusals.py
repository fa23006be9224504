"""Foreign, absent and revoked names look the same: status, body, headers and time (S12)."""

from __future__ import annotations

import asyncio
import json
import random
import time

import msgspec
import pytest

from controlplane.isolation.statistics import auc_of
from router.contract.secrets import new_api_key
from router.contract.snapshot import KeyGrant, NamespacePolicy, PolicySnapshot, TenantGrant
from tests.router.conftest import ALICE_KEY, FLEET, RunningRouter, StartRouter, snapshot_for, start_router  # noqa: F401

ROUNDS = 400
"""Of each name: an AUC of 0.5 then has a 99.99 % interval of ± 0.08."""
GONE = ("revoked key", "expired key", "key of a suspended namespace", "key of a revoked tenant")


def world() -> tuple[PolicySnapshot, dict[str, str]]:
    """A snapshot, and what stands in the authorization header, by name."""
    snapshot = snapshot_for(["http://127.0.0.1:9"])
    keys, tenants, namespaces = dict(snapshot.keys), dict(snapshot.tenants), dict(snapshot.namespaces)
    tenants["gone"] = TenantGrant(status="revoked")
    namespaces["gone/n"] = NamespacePolicy("gone", "n", "nonce-g")
    namespaces["acme/off"] = NamespacePolicy("acme", "off", "nonce-o", status="suspended")
    texts = {}
    for name, tenant, namespace, fields in (
        (GONE[0], "acme", "acme/support", {"status": "revoked"}),
        (GONE[1], "acme", "acme/support", {"expires_at": 1.0}),
        (GONE[2], "acme", "acme/off", {}),
        (GONE[3], "gone", "gone/n", {}),
    ):
        key_id, secret, texts[name] = new_api_key()
        keys[key_id] = KeyGrant(tenant, namespace, FLEET.api_key_hash(key_id, secret), **fields)
    texts["key that never was"] = new_api_key()[2]
    texts["known key, wrong secret"] = ALICE_KEY[:-4] + ("AAAA" if not ALICE_KEY.endswith("AAAA") else "BBBB")
    texts["no key of this form"] = "tm_" + "x" * len(ALICE_KEY[3:])
    return msgspec.structs.replace(snapshot, keys=keys, tenants=tenants, namespaces=namespaces), texts


class Asker:
    """One connection that is kept: what is timed is the router, not the handshake."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, key: str, model: str = "m") -> tuple[float, str, dict[str, str], bytes]:
        """(seconds, status line, headers, body)."""
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hi"}]}).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {key}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        began = time.perf_counter()
        self.writer.write(head.encode() + body)
        answered = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        seconds = time.perf_counter() - began
        status, *lines = answered[:-4].split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        content = await self.reader.readexactly(int(headers["content-length"]))
        return seconds, status, headers, content


async def asker_of(router: RunningRouter) -> Asker:
    return Asker(*await asyncio.open_connection("127.0.0.1", router.settings.router_port))


def shape(answer: tuple[float, str, dict[str, str], bytes]) -> tuple[str, tuple[str, ...], dict[str, str], bytes]:
    """All that may not differ: the request's own id is left out, also where the body repeats it."""
    _, status, headers, body = answer
    request_id = headers["x-request-id"]
    stable = {name: value for name, value in headers.items() if name not in ("x-request-id", "date")}
    return status, tuple(headers), stable, body.replace(request_id.encode(), b"")


async def test_keys_that_are_not_valid_get_one_answer(
    start_router: StartRouter,  # noqa: F811 - the imported fixture
) -> None:
    snapshot, texts = world()
    asker = await asker_of(await start_router(snapshot))
    shapes = {name: shape(await asker.ask(text)) for name, text in texts.items()}
    assert len({json.dumps([s[0], s[1], s[2], s[3].decode()]) for s in shapes.values()}) == 1, shapes
    assert next(iter(shapes.values()))[0].startswith("HTTP/1.1 401")


async def test_models_that_one_may_not_use_and_models_that_are_not_get_one_answer(
    start_router: StartRouter,  # noqa: F811 - the imported fixture
) -> None:
    snapshot = snapshot_for(["http://127.0.0.1:9"], models=("m",))
    pools = {"p": msgspec.structs.replace(snapshot.pools["p"], models=("m", "secret"))}
    asker = await asker_of(await start_router(msgspec.structs.replace(snapshot, pools=pools)))
    foreign, absent = await asker.ask(ALICE_KEY, "secret"), await asker.ask(ALICE_KEY, "absent")
    assert shape(foreign)[:3] == shape(absent)[:3] and foreign[1].startswith("HTTP/1.1 404")
    assert shape(foreign)[3].replace(b"secret", b"?") == shape(absent)[3].replace(b"absent", b"?")


async def times_of(asker: Asker, texts: dict[str, str]) -> dict[str, list[float]]:
    """Asked in a fresh random order each round, so that the machine's moods meet all alike."""
    rng, found = random.Random(1), {name: [] for name in texts}
    for text in texts.values():
        await asker.ask(text)
    for _ in range(ROUNDS):
        for name in rng.sample(list(texts), len(texts)):
            found[name].append((await asker.ask(texts[name]))[0])
    return found


@pytest.mark.real_time
async def test_their_times_do_not_tell_them_apart(
    start_router: StartRouter,  # noqa: F811 - the imported fixture
) -> None:
    """Mann–Whitney, which outliers do not move. By chance one pair in ten thousand is accused: twice is proof."""
    snapshot, texts = world()
    asker = await asker_of(await start_router(snapshot))
    suspects = list(texts)
    for _ in range(2):
        times = await times_of(asker, texts)
        told = set()
        for name, other in [(a, b) for a in suspects for b in texts if a != b]:
            found = auc_of(times[name], times[other], confidence=0.9999)
            if found.low > 0.5 or found.high < 0.5:
                told.add(name)
        suspects = [name for name in suspects if name in told]
    assert not suspects, {name: sorted(times[name])[ROUNDS // 2] for name in texts}


async def test_the_test_of_times_sees_a_difference_of_a_fifth(
    start_router: StartRouter,  # noqa: F811 - the imported fixture
) -> None:
    """A test that could not fail would prove nothing."""
    snapshot, texts = world()
    times = await times_of(await asker_of(await start_router(snapshot)), {"a": texts[GONE[0]], "b": texts[GONE[1]]})
    slower = [seconds * 1.2 for seconds in times["b"]]
    assert auc_of(times["a"], slower, confidence=0.9999).low > 0.5


@pytest.mark.parametrize("name", GONE)
def test_the_world_has_each_kind(name: str) -> None:
    assert name in world()[1]

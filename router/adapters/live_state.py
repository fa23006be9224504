"""The pollers' view of the workers, read for the choice twice a second (S2.4); and the routers' signs of life."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

import msgspec

from router.adapters.valkey import Valkey
from router.contract.channels import KV_LIVE_HASH, ROUTERS_HASH, WORKER_LIVE_HASH
from router.contract.hello import RouterHello, decode_hello, encode_hello
from router.contract.ids import WorkerId
from router.contract.live import KvLive, WorkerLive, decode_kv, decode_worker

READ_INTERVAL_S = 0.5
HELLO_INTERVAL_S = 1.0
ROUTER_LOST_AFTER_S = 10.0
"""Ten missed signs of life; a router that is only slow must not vanish from the count."""

ApplyLive = Callable[[Mapping[WorkerId, WorkerLive], Mapping[WorkerId, KvLive]], None]


async def run_live_state(valkey: Valkey, apply: ApplyLive) -> None:
    """Forever. While Valkey is away nothing is applied, and the figures age out in the core."""
    while True:
        workers = await valkey.hash_items(WORKER_LIVE_HASH)
        caches = await valkey.hash_items(KV_LIVE_HASH)
        if workers is not None and caches is not None:
            apply(_decoded(workers, decode_worker), _decoded(caches, decode_kv))
        await asyncio.sleep(READ_INTERVAL_S)


async def run_hello(valkey: Valkey, hello: Callable[[], RouterHello], set_other_routers: Callable[[int], None]) -> None:
    """Forever: say which snapshot is served, and count who else serves."""
    while True:
        own = hello()
        if await valkey.put_in_hash(ROUTERS_HASH, own.router, encode_hello(own)):
            found = await valkey.hash_items(ROUTERS_HASH)
            if found is not None:
                set_other_routers(_others_alive(found, own.router))
        await asyncio.sleep(HELLO_INTERVAL_S)


def _others_alive(found: Mapping[bytes, bytes], own: str) -> int:
    oldest = time.time() - ROUTER_LOST_AFTER_S
    hellos = _decoded(found, decode_hello).values()
    return sum(hello.router != own and hello.at >= oldest for hello in hellos)


def _decoded[T](items: Mapping[bytes, bytes], decode: Callable[[bytes], T]) -> dict[WorkerId, T]:
    """Entries that cannot be read are left out: unknown, not wrong."""
    out: dict[WorkerId, T] = {}
    for name, value in items.items():
        try:
            out[WorkerId(name.decode())] = decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    return out

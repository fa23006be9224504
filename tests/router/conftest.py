"""A whole router on real sockets, in the test's own event loop, in front of scripted workers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from router.config import Settings
from router.contract.secrets import FleetKey, new_api_key
from router.contract.snapshot import (
    KeyGrant,
    NamespacePolicy,
    PolicySnapshot,
    PoolPolicy,
    SignedSnapshot,
    TenantGrant,
    WorkerEntry,
    encode_document,
    sign_snapshot,
)
from router.runtime import Runtime
from tests.router.scripted_worker import ScriptedWorker

FLEET_HEX = "11" * 32
FLEET = FleetKey.from_hex(FLEET_HEX)
ALICE_ID, _ALICE_SECRET, ALICE_KEY = new_api_key()
CHARLIE_ID, _CHARLIE_SECRET, CHARLIE_KEY = new_api_key()
ALICE_SALT = FLEET.cache_salt("acme", "support", "nonce-a")
MODEL = "m"


def snapshot_for(urls: list[str], **policy: object) -> PolicySnapshot:
    namespace = {"tenant": "acme", "slug": "support", "generation_nonce": "nonce-a", **policy}
    return PolicySnapshot(
        tenants={"acme": TenantGrant(), "zeta": TenantGrant()},
        keys={
            ALICE_ID: KeyGrant("acme", "acme/support", FLEET.api_key_hash(ALICE_ID, _ALICE_SECRET)),
            CHARLIE_ID: KeyGrant("zeta", "zeta/other", FLEET.api_key_hash(CHARLIE_ID, _CHARLIE_SECRET)),
        },
        namespaces={
            "acme/support": NamespacePolicy(**namespace),
            "zeta/other": NamespacePolicy(tenant="zeta", slug="other", generation_nonce="nonce-z"),
        },
        pools={"p": PoolPolicy(models=(MODEL,))},
        workers={f"p/w{i}": WorkerEntry(pool="p", url=url) for i, url in enumerate(urls, 1)},
    )


def signed(snapshot: PolicySnapshot, *, version: int = 1, epoch: int = 1, key: FleetKey = FLEET) -> SignedSnapshot:
    return sign_snapshot(snapshot, version=version, epoch=epoch, created_at=1_700_000_000.0, fleet_key=key)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass
class RunningRouter:
    runtime: Runtime
    settings: Settings
    stop: asyncio.Event
    task: asyncio.Task
    state_dir: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.settings.router_port}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.settings.router_admin_port}"

    def client(self, key: str | None = ALICE_KEY) -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=10, trust_env=False)

    async def post(self, body: object, *, path: str = "/v1/chat/completions", key: str | None = ALICE_KEY, **kwargs):
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json", **kwargs.pop("headers", {})}
        async with self.client(key) as client:
            return await client.post(path, content=content, headers=headers, **kwargs)

    async def admin(self, path: str) -> httpx.Response:
        async with httpx.AsyncClient(base_url=self.admin_url, timeout=5, trust_env=False) as client:
            return await client.get(path)

    async def raw(self, data: bytes, *, timeout_s: float = 5.0) -> bytes:
        """Bytes in, all bytes out until the router closes or is silent."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.settings.router_port)
        writer.write(data)
        out = b""
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(timeout_s):
                while piece := await reader.read(65536):
                    out += piece
        writer.transport.abort()
        return out


def chat(content: object = "hi", **fields: object) -> dict:
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], **fields}


StartRouter = Callable[..., "asyncio.Future[RunningRouter]"]


@pytest_asyncio.fixture
async def start_router(tmp_path: Path) -> AsyncIterator[StartRouter]:
    running: list[RunningRouter] = []

    async def start(
        snapshot: PolicySnapshot | None, *, document: bytes | None = None, **settings: object
    ) -> RunningRouter:
        state_dir = tmp_path / f"router{len(running)}"
        state_dir.mkdir()
        if document is None and snapshot is not None:
            document = encode_document(signed(snapshot))
        if document is not None:
            (state_dir / "snapshot.json").write_bytes(document)
        values = {
            "fleet_key": FLEET_HEX,
            "router_id": "r1",
            "router_port": free_port(),
            "router_admin_port": free_port(),
            "router_state_dir": state_dir,
            "router_drain_s": 1.0,
            "router_probe_interval_s": 0.0,
            **settings,
        }
        made = Settings(**values)
        runtime = Runtime(made)
        stop = asyncio.Event()
        task = asyncio.create_task(runtime.run(stop))
        router = RunningRouter(runtime, made, stop, task, state_dir)
        running.append(router)
        await _until_listening(router)
        return router

    yield start
    for router in running:
        router.task.cancel()
        for connection in list(router.runtime.edge.connections):
            connection.cancel()
        await asyncio.wait((router.task,), timeout=5)


async def _until_listening(router: RunningRouter) -> None:
    for _ in range(200):
        if router.task.done():
            router.task.result()
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", router.settings.router_port)
            writer.close()
            return
        except OSError:
            await asyncio.sleep(0.01)
    raise AssertionError("the router does not listen")


@pytest_asyncio.fixture
async def worker() -> AsyncIterator[ScriptedWorker]:
    made = await ScriptedWorker().start()
    yield made
    await made.stop()


@pytest_asyncio.fixture
async def other_worker() -> AsyncIterator[ScriptedWorker]:
    made = await ScriptedWorker().start()
    yield made
    await made.stop()


@pytest_asyncio.fixture
async def router(start_router: StartRouter, worker: ScriptedWorker) -> RunningRouter:
    return await start_router(snapshot_for([worker.url]))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"

"""Snapshots: the disk first, the push as a hint, the poll as the truth; never unsigned, altered or older ones."""

from __future__ import annotations

import asyncio
import json

import pytest

from router.contract.hello import decode_hello
from router.contract.secrets import FleetKey
from router.contract.snapshot import SignedSnapshot, encode_document
from tests.router.conftest import FLEET, RunningRouter, StartRouter, chat, signed, snapshot_for
from tests.router.scripted_worker import ScriptedWorker

OTHER_FLEET = FleetKey(b"x" * 32)


def _flipped(document: bytes) -> bytes:
    at = document.index(b"nonce-a")
    return document[:at] + b"m" + document[at + 1 :]


def _offers(worker: ScriptedWorker) -> dict[str, bytes]:
    snapshot = snapshot_for([worker.url])
    good = encode_document(signed(snapshot, version=9, epoch=5))
    return {
        "truncated": good[:-10],
        "empty": b"",
        "bit-flipped": _flipped(good),
        "unsigned": encode_document(SignedSnapshot(9, 5, 1.0, signed(snapshot).digest, signed(snapshot).body, "")),
        "of another fleet": encode_document(signed(snapshot, version=9, epoch=5, key=OTHER_FLEET)),
        "older version": encode_document(signed(snapshot, version=4, epoch=5)),
        "older epoch": encode_document(signed(snapshot, version=9, epoch=4)),
        "same version, other content": encode_document(signed(snapshot_for([]), version=5, epoch=5)),
    }


@pytest.mark.parametrize(
    "name",
    [
        "truncated", "empty", "bit-flipped", "unsigned", "of another fleet", "older version", "older epoch",
        "same version, other content",
    ],
)  # fmt: skip
async def test_it_refuses_and_keeps_the_last_good_one(
    start_router: StartRouter, worker: ScriptedWorker, name: str
) -> None:
    good = encode_document(signed(snapshot_for([worker.url]), version=5, epoch=5))
    router = await start_router(None, document=good)
    assert not await router.runtime.snapshots.offer(_offers(worker)[name], source="test")
    assert router.runtime.hello().last_error
    assert router.runtime.hello().snapshot_version == 5
    assert (await router.post(chat())).status_code == 200
    assert (router.state_dir / "snapshot.json").read_bytes() == good


async def test_it_forgets_a_refusal_once_a_good_one_came(start_router: StartRouter, worker: ScriptedWorker) -> None:
    router = await start_router(snapshot_for([worker.url]))
    await router.runtime.snapshots.offer(b"nonsense", source="test")
    assert await router.runtime.snapshots.offer(encode_document(signed(snapshot_for([]), version=2)), source="test")
    assert router.runtime.hello().last_error == ""
    kept = (router.state_dir / "snapshot.json").read_bytes()
    assert kept == encode_document(signed(snapshot_for([]), version=2))


async def test_it_starts_unready_without_a_snapshot_and_says_why(start_router: StartRouter) -> None:
    router = await start_router(None, document=b"{torn")
    ready = await router.admin("/readyz")
    assert ready.status_code == 503 and "not readable" in ready.json()["last_error"]
    answer = await router.post(chat())
    assert answer.status_code in (401, 503)
    assert (await router.admin("/healthz")).status_code == 200


async def test_it_serves_from_disk_with_valkey_and_control_plane_down(
    start_router: StartRouter, worker: ScriptedWorker
) -> None:
    router = await start_router(
        snapshot_for([worker.url]), redis_url="redis://127.0.0.1:1/0", control_url="http://127.0.0.1:1"
    )
    assert (await router.admin("/readyz")).status_code == 200
    for _ in range(3):
        assert (await router.post(chat())).status_code == 200
        await asyncio.sleep(0.2)
    state = (await router.admin("/state")).json()
    assert (state["valkey_up"], state["control_up"]) == (False, False)


class ControlPlane:
    """Answers the snapshot poll as the web server does, and remembers the hellos."""

    def __init__(self) -> None:
        self.document = b""
        self.version = 0
        self.hellos: list = []
        self.tokens: set[str] = set()

    async def start(self) -> ControlPlane:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def publish(self, document: SignedSnapshot) -> None:
        self.document, self.version = encode_document(document), document.version

    def stop(self) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                assert head.startswith("post /api/v1/snapshots/poll http/1.1")
                body = await reader.readexactly(int(head.partition("content-length: ")[2].split("\r\n")[0]))
                hello = decode_hello(body)
                self.hellos.append(hello)
                self.tokens.add(head.partition("authorization: bearer ")[2].split("\r\n")[0])
                if hello.snapshot_version == self.version:
                    writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
                else:
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(self.document) + self.document)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


async def _until(condition, *, within_s: float) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - the condition is in another process or object
            await asyncio.sleep(0.02)


async def test_it_polls_applies_and_acknowledges(start_router: StartRouter, worker: ScriptedWorker) -> None:
    control = await ControlPlane().start()
    control.publish(signed(snapshot_for([worker.url]), version=3))
    router = await start_router(None, control_url=control.url)
    await _until(lambda: router.runtime.table.policy_version == 3, within_s=2)
    assert (await router.post(chat())).status_code == 200
    await _until(lambda: control.hellos[-1].snapshot_version == 3, within_s=0.5)
    control.publish(signed(snapshot_for([]), version=4))
    await _until(lambda: control.hellos[-1].snapshot_version == 4, within_s=2)
    assert (await router.post(chat())).status_code == 503
    assert control.tokens == {FLEET.router_token().lower()}
    control.stop()


async def test_it_stays_in_force_when_the_control_plane_talks_nonsense(
    start_router: StartRouter, worker: ScriptedWorker
) -> None:
    control = await ControlPlane().start()
    control.document, control.version = json.dumps({"detail": "oops"}).encode(), 99
    router = await start_router(snapshot_for([worker.url]), control_url=control.url)
    await _until(lambda: bool(router.runtime.store.last_error), within_s=2)
    assert (await router.post(chat())).status_code == 200
    control.stop()


async def test_it_cuts_a_new_workers_pool_in_and_an_old_one_out(
    router: RunningRouter, worker: ScriptedWorker, other_worker: ScriptedWorker
) -> None:
    await router.post(chat())
    moved = encode_document(signed(snapshot_for([other_worker.url]), version=2))
    assert await router.runtime.snapshots.offer(moved, source="test")
    for _ in range(3):
        assert (await router.post(chat())).status_code == 200
    assert (len(worker.asked), len(other_worker.asked)) == (1, 3)

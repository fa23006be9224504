"""A signed revocation at the admin port: denied at once, running streams ended, kept before it is acknowledged."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import time

import msgspec
import pytest

from router.adapters.snapshot_disk import SnapshotDisk
from router.contract.secrets import FleetKey
from router.contract.snapshot import ModelGeneration, PolicySnapshot, encode_document
from tests.revocation.conftest import acked, send, send_all
from tests.router.conftest import (
    ALICE_ID,
    ALICE_SALT,
    CHARLIE_ID,
    CHARLIE_KEY,
    MODEL,
    RunningRouter,
    StartRouter,
    chat,
    signed,
    snapshot_for,
)
from tests.router.scripted_worker import DONE, ScriptedWorker, event, stream

REVOCATIONS = [
    {"kind": "key", "subject": ALICE_ID},
    {"kind": "namespace", "subject": "acme/support"},
    {"kind": "tenant", "subject": "acme"},
]
NEXT = ModelGeneration(number=2, nonce="b" * 32, at=2.0)


def _with_generation(snapshot: PolicySnapshot, generation: ModelGeneration) -> PolicySnapshot:
    pool = msgspec.structs.replace(snapshot.pools["p"], model_generations={MODEL: generation})
    return msgspec.structs.replace(snapshot, pools={"p": pool})


@pytest.mark.parametrize("what", REVOCATIONS, ids=lambda what: what["kind"])
async def test_it_denies_at_once_and_in_the_words_for_any_wrong_key(
    router: RunningRouter, worker: ScriptedWorker, what: dict
) -> None:
    assert (await router.post(chat())).status_code == 200
    wrong = await router.post(chat(), key="tm_none")
    assert acked(await send(router, epoch=2, **what)) == (2,)
    answer = await router.post(chat())
    assert (answer.status_code, answer.json()) == (401, wrong.json())
    assert (await router.post(chat(), key=CHARLIE_KEY)).status_code == 200
    assert len(worker.asked) == 2


@pytest.mark.parametrize("what", REVOCATIONS, ids=lambda what: what["kind"])
async def test_it_ends_running_streams_before_it_acknowledges(
    router: RunningRouter, worker: ScriptedWorker, what: dict
) -> None:
    worker.script = stream(*[event(str(number)) for number in range(200)], DONE, pause_s=0.05)
    request = asyncio.create_task(router.post(chat(stream=True)))
    while router.runtime.service.inflight == 0 or not worker.asked:  # noqa: ASYNC110 - the condition is elsewhere
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.15)
    await send(router, epoch=2, **what)
    assert router.runtime.service.inflight == 0
    answer = await asyncio.wait_for(request, 1.0)
    assert DONE not in answer.content and b'"code":"invalid_api_key"' in answer.content


async def test_a_model_revision_is_refused_until_its_successor_is_known(
    router: RunningRouter, worker: ScriptedWorker
) -> None:
    await router.post(chat())
    assert acked(await send(router, epoch=2, kind="model", subject=f"p:{MODEL}", retired=1)) == (2,)
    refused = await router.post(chat())
    assert refused.status_code == 503 and refused.headers["retry-after"]
    snapshot = _with_generation(snapshot_for([worker.url]), NEXT)
    assert await router.runtime.snapshots.offer(encode_document(signed(snapshot, version=2, epoch=2)), source="test")
    assert (await router.post(chat())).status_code == 200
    first, second = (asked.json["cache_salt"] for asked in worker.asked)
    assert first == ALICE_SALT and second not in ("", first)


async def test_nothing_cached_for_a_retired_revision_is_expected_again(
    router: RunningRouter, worker: ScriptedWorker
) -> None:
    long = chat("one two three four " * 400)
    for _ in range(2):
        await router.post(long)
    table = router.runtime.table
    before = table.grant_of("acme/support", model=MODEL)  # type: ignore[arg-type]
    text = b"x" * 4096
    hashes = table.fingerprint(before, text, template="").hashes  # type: ignore[arg-type]
    snapshot = _with_generation(snapshot_for([worker.url]), NEXT)
    await router.runtime.snapshots.offer(encode_document(signed(snapshot, version=2, epoch=2)), source="test")
    after = table.grant_of("acme/support", model=MODEL)  # type: ignore[arg-type]
    assert after.salt != before.salt
    assert not set(hashes) & set(table.fingerprint(after, text, template="").hashes)  # type: ignore[arg-type]


async def test_a_revoked_tenants_index_entries_are_dropped(router: RunningRouter) -> None:
    await router.post(chat("word " * 2000))
    assert router.runtime.table.state(now=0.0).index_blocks > 0
    await send(router, epoch=2, kind="tenant", subject="acme")
    assert router.runtime.table.state(now=0.0).index_blocks == 0


async def test_it_takes_nothing_unsigned_foreign_or_unreadable(router: RunningRouter) -> None:
    foreign = await send(router, epoch=2, kind="key", subject=ALICE_ID, fleet=FleetKey(b"x" * 32))
    assert foreign.status_code == 403
    assert (await router.post(chat())).status_code == 200
    assert router.runtime.hello().epoch == 1
    assert (await router.admin("/revocations")).status_code == 404


async def test_a_replay_is_acknowledged_and_changes_nothing(router: RunningRouter) -> None:
    applied: list[int] = []
    real = router.runtime.store._apply
    router.runtime.store._apply = lambda document, snapshot: (applied.append(1), real(document, snapshot))[1]
    for _ in range(3):
        assert acked(await send(router, epoch=2, kind="key", subject=ALICE_ID)) == (2,)
    assert len(applied) == 1


async def test_one_out_of_order_is_in_force_and_the_epoch_waits_for_the_gap(router: RunningRouter) -> None:
    assert acked(await send(router, epoch=3, kind="key", subject=ALICE_ID)) == (3,)
    assert (await router.post(chat())).status_code == 401
    assert router.runtime.hello().epoch == 1
    assert acked(await send(router, epoch=2, kind="namespace", subject="zeta/other")) == (2,)
    assert router.runtime.hello().epoch == 3


async def test_a_revocation_of_a_past_epoch_that_is_not_in_force_is_not_acknowledged(
    start_router: StartRouter, worker: ScriptedWorker
) -> None:
    """As after a database was restored: its epochs mean other things than those that the router has seen."""
    document = encode_document(signed(snapshot_for([worker.url]), version=9, epoch=50))
    router = await start_router(None, document=document)
    assert acked(await send(router, epoch=12, kind="key", subject=ALICE_ID)) == ()


async def test_a_key_that_the_router_learns_of_too_late_is_refused_all_the_same(
    start_router: StartRouter, worker: ScriptedWorker
) -> None:
    """Issued and revoked within a moment: the snapshot in between may arrive after the revocation."""
    full = snapshot_for([worker.url])
    before = msgspec.structs.replace(full, keys={CHARLIE_ID: full.keys[CHARLIE_ID]})
    router = await start_router(before)
    assert acked(await send(router, epoch=2, kind="key", subject=ALICE_ID)) == (2,)
    between = encode_document(signed(full, version=2, epoch=1))
    assert await router.runtime.snapshots.offer(between, source="poll")
    assert (await router.post(chat())).status_code == 401
    assert router.runtime.hello().epoch == 2


async def test_a_snapshot_of_its_epoch_takes_its_place_and_an_earlier_one_does_not(
    router: RunningRouter, worker: ScriptedWorker
) -> None:
    await send_all(router, [{"epoch": epoch, **what} for epoch, what in enumerate(REVOCATIONS, 2)])
    base = snapshot_for([worker.url])
    offer = router.runtime.snapshots.offer
    assert await offer(encode_document(signed(base, version=2, epoch=1)), source="test")
    assert (await router.post(chat())).status_code == 401
    assert router.runtime.hello().epoch == 4
    # The control plane's word decides once it is of that epoch: here, that nothing of it was meant to last.
    assert await offer(encode_document(signed(base, version=3, epoch=4)), source="test")
    assert (await router.post(chat())).status_code == 200
    assert json.loads((router.state_dir / "revocations.json").read_text())["pending"] == []


async def _restarted(start_router: StartRouter, router: RunningRouter) -> RunningRouter:
    """Another router that begins with what this one has on disk."""
    again = await start_router(None)
    for name in ("snapshot.json", "revocations.json"):
        if (router.state_dir / name).exists():
            (again.state_dir / name).write_bytes((router.state_dir / name).read_bytes())
    again.runtime.store.load()
    return again


async def test_a_restart_brings_nothing_back(start_router: StartRouter, worker: ScriptedWorker) -> None:
    router = await start_router(snapshot_for([worker.url]))
    await send(router, epoch=2, kind="key", subject=ALICE_ID)
    again = await _restarted(start_router, router)
    assert again.runtime.hello().epoch == 2
    assert (await again.post(chat())).status_code == 401
    assert (await again.post(chat(), key=CHARLIE_KEY)).status_code == 200


async def test_a_restart_without_its_snapshot_takes_none_from_before(
    start_router: StartRouter, worker: ScriptedWorker
) -> None:
    router = await start_router(snapshot_for([worker.url]))
    newer = signed(snapshot_for([worker.url]), version=2, epoch=7)
    await router.runtime.snapshots.offer(encode_document(newer), source="test")
    (router.state_dir / "snapshot.json").unlink()
    again = await _restarted(start_router, router)
    stale = encode_document(signed(snapshot_for([worker.url]), version=1, epoch=6))
    assert not await again.runtime.snapshots.offer(stale, source="valkey")
    assert "older than epoch 7" in again.runtime.hello().last_error
    assert await again.runtime.snapshots.offer(encode_document(newer), source="valkey")


async def test_an_altered_file_of_revocations_takes_nothing_away_and_gives_nothing_back(
    start_router: StartRouter, worker: ScriptedWorker
) -> None:
    router = await start_router(snapshot_for([worker.url]))
    await send(router, epoch=2, kind="key", subject=ALICE_ID)
    path = router.state_dir / "revocations.json"
    path.write_text(path.read_text().replace('"key"', '"tenant"').replace(ALICE_ID, "zeta"))
    again = await _restarted(start_router, router)
    # The epoch stands: the snapshot lacks it, so nothing is served until the control plane has spoken.
    assert again.runtime.store.current is None
    assert (await again.post(chat(), key=CHARLIE_KEY)).status_code == 503


async def test_with_the_disk_full_it_denies_and_does_not_acknowledge(
    router: RunningRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(SnapshotDisk, "_write", full)
    assert acked(await send(router, epoch=2, kind="key", subject=ALICE_ID)) == ()
    assert (await router.post(chat())).status_code == 401
    hello = router.runtime.hello()
    assert hello.epoch == 1 and hello.last_error == "revocations not kept on disk: No space left on device"
    assert not router.runtime.store.is_kept
    monkeypatch.undo()
    # The poll tries again.
    await router.runtime.store.keep()
    assert router.runtime.hello().epoch == 2 and router.runtime.store.is_kept


@pytest.mark.real_time
async def test_a_slow_disk_delays_the_acknowledgement_and_nothing_else(
    router: RunningRouter, worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, written = SnapshotDisk._write, []

    def slow(disk: SnapshotDisk, name: str, data: bytes) -> None:
        time.sleep(1.5)
        real(disk, name, data)
        written.append(name)

    monkeypatch.setattr(SnapshotDisk, "_write", slow)
    began = time.monotonic()
    sending = [asyncio.create_task(send(router, epoch=epoch, **what)) for epoch, what in enumerate(REVOCATIONS[:2], 2)]
    while (await router.post(chat())).status_code == 200:  # noqa: ASYNC110 - the condition is elsewhere
        await asyncio.sleep(0)
    assert (await router.post(chat(), key=CHARLIE_KEY)).status_code == 200
    assert time.monotonic() - began < 1.4 and not written
    assert router.runtime.hello().epoch == 1
    assert sorted([acked(await task) for task in sending]) == [(2,), (3,)]
    assert written and router.runtime.hello().epoch == 3


async def test_it_hears_of_a_revocation_before_it_has_a_snapshot(
    start_router: StartRouter, worker: ScriptedWorker
) -> None:
    router = await start_router(None)
    assert acked(await send(router, epoch=2, kind="key", subject=ALICE_ID)) == (2,)
    early = encode_document(signed(snapshot_for([worker.url]), version=1, epoch=1))
    assert await router.runtime.snapshots.offer(early, source="valkey")
    assert (await router.post(chat())).status_code == 401


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"router_admin_host": "127.0.0.1"}, "http://127.0.0.1:{port}"),
        ({"router_admin_host": "0.0.0.0"}, "http://{host}:{port}"),
        ({"router_admin_url": "https://router-7.internal:9443"}, "https://router-7.internal:9443"),
    ],
)
async def test_it_tells_the_control_plane_an_address_that_means_this_router(
    start_router: StartRouter, given: dict, told: str
) -> None:
    router = await start_router(None, **given)
    port = router.settings.router_admin_port
    assert router.runtime.hello().admin_url == told.format(port=port, host=socket.gethostname())

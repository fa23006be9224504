"""A full disk costs the router nothing but its copy of the snapshot (A18)."""

from __future__ import annotations

import errno

import pytest

from router.adapters.snapshot_disk import SnapshotDisk
from router.contract.snapshot import encode_document
from tests.router.conftest import StartRouter, chat, signed, snapshot_for
from tests.router.scripted_worker import ScriptedWorker


async def test_with_the_disk_full_a_snapshot_is_in_force_and_the_router_says_that_it_is_not_kept(
    start_router: StartRouter, worker: ScriptedWorker, other_worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = await start_router(snapshot_for([worker.url]))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(SnapshotDisk, "_write", full)
    newer = encode_document(signed(snapshot_for([other_worker.url]), version=2))
    assert router.runtime.store.offer(newer, source="test")
    await router.runtime.store.keep()
    assert (await router.post(chat())).status_code == 200
    assert other_worker.asked and not worker.asked, "the newer one is in force"
    assert "No space left on device" in router.runtime.hello().last_error

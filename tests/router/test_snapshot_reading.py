"""Reading a document takes long in a large installation: requests go on meanwhile, and order is kept."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from router.adapters import snapshot_store
from router.adapters.snapshot_disk import SnapshotDisk
from router.adapters.snapshot_store import SnapshotStore
from router.contract.snapshot import encode_document
from tests.router.conftest import FLEET, signed, snapshot_for

READ_S = 0.2


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SnapshotStore:
    """Its documents with an even version take READ_S to read."""
    plain = snapshot_store.open_document

    def slow(data, key):
        document, snapshot = plain(data, key)
        time.sleep(READ_S if document.version % 2 == 0 else 0)
        return document, snapshot

    monkeypatch.setattr(snapshot_store, "open_document", slow)
    return SnapshotStore(fleet_key=FLEET, disk=SnapshotDisk(tmp_path), apply=lambda document, policy: None)


def _document(version: int) -> bytes:
    return encode_document(signed(snapshot_for([]), version=version))


async def test_the_loop_goes_on_while_a_document_is_read(store: SnapshotStore) -> None:
    received = asyncio.create_task(store.receive(_document(2), source="test"))
    turns = 0
    while not received.done():
        await asyncio.sleep(0.005)
        turns += 1
    assert received.result() is True and store.current is not None
    assert turns > 10


async def test_a_younger_one_that_overtakes_stays_in_force(store: SnapshotStore) -> None:
    older, younger = await asyncio.gather(
        store.receive(_document(2), source="poll"), store.receive(_document(3), source="valkey")
    )
    assert (older, younger) == (None, True)
    assert store.current is not None and store.current.version == 3

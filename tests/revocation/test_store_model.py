"""Whatever arrives, in whatever order, over restarts and full disks: what was acknowledged is never granted again."""

from __future__ import annotations

import asyncio
import errno
import shutil
import tempfile
from pathlib import Path

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router.adapters.snapshot_disk import REVOCATIONS_FILE, SNAPSHOT_FILE, SnapshotDisk
from router.adapters.snapshot_store import SnapshotStore
from router.contract.revocation import Revocation, sign_revocation
from router.contract.snapshot import KeyGrant, PolicySnapshot, SignedSnapshot, encode_document
from router.core.revocation import in_force
from tests.router.conftest import FLEET, MODEL, signed, snapshot_for

KEYS = 6


class FullDisk(SnapshotDisk):
    has_no_room_for: frozenset[str] = frozenset()

    def _write(self, name: str, data: bytes) -> None:
        if name in FullDisk.has_no_room_for:
            raise OSError(errno.ENOSPC, "No space left on device")
        super()._write(name, data)


class Deliveries(RuleBasedStateMachine):
    """A control plane that issues, revokes and publishes, and a router that hears of it by a bad line."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="tidemark-model-"))
        FullDisk.has_no_room_for = frozenset()
        self.policy = snapshot_for(["http://127.0.0.1:9"])
        self.epoch, self.version = 1, 0
        self.revocations: list[Revocation] = []
        self.documents: list[bytes] = []
        self.acked: set[Revocation] = set()
        self.publish()
        self.restart()

    # the control plane

    @rule(number=st.integers(0, KEYS - 1))
    def issue(self, number: int) -> None:
        name = f"key{number:09d}"
        if name not in self.policy.keys:
            grant = KeyGrant("acme", "acme/support", "0" * 64)  # type: ignore[arg-type]
            self.policy = msgspec.structs.replace(self.policy, keys={**self.policy.keys, name: grant})

    @rule(number=st.integers(0, KEYS - 1))
    def revoke_key(self, number: int) -> None:
        name = f"key{number:09d}"
        grant = self.policy.keys.get(name)  # type: ignore[call-overload]
        if grant is not None and grant.status == "active":
            revoked = msgspec.structs.replace(grant, status="revoked")
            self.policy = msgspec.structs.replace(self.policy, keys={**self.policy.keys, name: revoked})
            self._give_epoch(kind="key", subject=name)

    @rule()
    def suspend_something(self) -> None:
        """What raises the epoch without a message of its own: a gap until the snapshot comes."""
        self.epoch += 1

    @rule()
    def publish(self) -> None:
        self.version += 1
        self.documents.append(encode_document(signed(self.policy, version=self.version, epoch=self.epoch)))

    def _give_epoch(self, **what: str) -> None:
        self.epoch += 1
        self.revocations.append(sign_revocation(FLEET, epoch=self.epoch, **what))  # type: ignore[arg-type]

    # the line

    @rule(data=st.data())
    def deliver_a_snapshot(self, data: st.DataObject) -> None:
        self._offer(data.draw(st.sampled_from(self.documents)))

    @rule()
    def poll(self) -> None:
        self._offer(self.documents[-1])
        asyncio.run(self.store.keep())
        self._note_epoch()

    @precondition(lambda self: self.revocations)
    @rule(data=st.data())
    def deliver_revocations(self, data: st.DataObject) -> None:
        told = data.draw(st.lists(st.sampled_from(self.revocations), min_size=1, max_size=3))
        self.store.revoke(told)
        asyncio.run(self.store.keep())
        epochs = self.store.acked(told)
        self.acked |= {revocation for revocation in told if revocation.epoch in epochs}
        self._note_epoch()

    def _offer(self, document: bytes) -> None:
        if self.store.offer(document, source="test"):
            asyncio.run(self.store.keep())
        self._note_epoch()

    def _note_epoch(self) -> None:
        self.acked |= {revocation for revocation in self.revocations if revocation.epoch <= self.store.acked_epoch}

    # the router's life

    @rule()
    def restart(self) -> None:
        self.in_force: PolicySnapshot | None = None
        self.store = SnapshotStore(fleet_key=FLEET, disk=FullDisk(self.folder), apply=self._apply)
        self.store.load()
        self._note_epoch()

    @rule(names=st.frozensets(st.sampled_from([SNAPSHOT_FILE, REVOCATIONS_FILE])))
    def the_disk_has_no_room_for(self, names: frozenset[str]) -> None:
        FullDisk.has_no_room_for = names

    @rule()
    def lose_the_snapshot_and_restart(self) -> None:
        (self.folder / SNAPSHOT_FILE).unlink(missing_ok=True)
        self.restart()

    def _apply(self, document: SignedSnapshot, snapshot: PolicySnapshot) -> None:
        self.in_force = snapshot

    @invariant()
    def what_was_acknowledged_is_not_granted(self) -> None:
        if self.in_force is not None:
            granted = [revocation for revocation in self.acked if not in_force(revocation, self.in_force)]
            assert not granted, granted

    def teardown(self) -> None:
        # With the line and the disk in order again, the router comes to what is published.
        FullDisk.has_no_room_for = frozenset()
        self.publish()
        self.poll()
        assert self.in_force is not None and self.in_force.pools["p"].models == (MODEL,)
        assert self.in_force.keys == self.policy.keys
        assert self.store.acked_epoch == self.epoch and self.store.is_kept
        assert (self.folder / REVOCATIONS_FILE).exists() or self.epoch == 1
        shutil.rmtree(self.folder)


TestDeliveries = Deliveries.TestCase
TestDeliveries.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

"""The snapshot in force, the revocations laid over it, and their copies on disk.

A document that is unsigned, altered, or older in version or epoch is refused; the last good one stays in force. A
revocation heard ahead of its snapshot is in force at once and stays until a snapshot of its epoch takes over.

    signed snapshot ─┐
                     ├─ without(…) ─→ apply ─→ keep ─→ acknowledged
    revocations ─────┘                         disk

A document is read and verified in a thread (some 20 ms for 5,000 namespaces), applying it is one step of the event
loop (1 ms), and the disk is written in a thread again: requests go on. Nothing is acknowledged that a restart would
undo: with the disk full, serving goes on and acknowledging stops (A18).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from router.adapters.snapshot_disk import KeptRevocations, SnapshotDisk
from router.contract.revocation import Revocation, is_genuine
from router.contract.secrets import FleetKey
from router.contract.snapshot import (
    PolicySnapshot,
    SignedSnapshot,
    SnapshotError,
    encode_document,
    open_document,
)
from router.core.revocation import epoch_reached, in_force, without

log = structlog.get_logger("router.snapshots")

PENDING_MAX = 4096
"""Revocations held ahead of their snapshot, about 300 bytes each; a poll brings that snapshot within a second."""

Apply = Callable[[SignedSnapshot, PolicySnapshot], None]


class SnapshotStore:
    def __init__(self, *, fleet_key: FleetKey, disk: SnapshotDisk, apply: Apply) -> None:
        self._fleet_key = fleet_key
        self._disk = disk
        self._apply = apply
        self._signed: PolicySnapshot | None = None
        """The content of `current`, without what is laid over it."""
        self._pending: dict[int, Revocation] = {}
        self._kept = KeptRevocations()
        self._kept_document: SignedSnapshot | None = None
        """The snapshot on disk."""
        self._keeping = asyncio.Lock()
        """Whole states are written one after another, so that an older one never takes a younger one's place."""
        self.current: SignedSnapshot | None = None
        self.last_error = ""
        """Why the newest offered document was refused, or ""."""

    @property
    def acked_epoch(self) -> int:
        """Every revocation up to it is in force, and would be after a restart."""
        return epoch_reached(_epoch_of(self._kept_document), {revocation.epoch for revocation in self._kept.pending})

    def load(self) -> None:
        """At start, before anything else. A bad file is an error to report, not one to die of."""
        try:
            kept = self._disk.read_revocations()
            genuine = tuple(item for item in kept.pending if is_genuine(item, self._fleet_key))
            self._kept = KeptRevocations(kept.epoch, genuine)
            self._pending = {item.epoch: item for item in genuine}
        except SnapshotError as error:
            self.refuse("disk", error)
        try:
            data = self._disk.read()
            if data is not None:
                self._take(*open_document(data, self._fleet_key))
                self._kept_document = self.current
        except SnapshotError as error:
            self.refuse("disk", error)

    def offer(self, data: bytes, *, source: str) -> bool | None:
        """Take a document if it is good and newer. True when it came into force, False when it was, None: refused.

        It is on the disk after `keep`.
        """
        try:
            opened = open_document(data, self._fleet_key)
        except SnapshotError as error:
            self.refuse(source, error)
            return None
        return self._offer_opened(*opened, source=source)

    async def receive(self, data: bytes, *, source: str) -> bool | None:
        """As `offer`, with the document read in a thread, and compared with what is in force afterwards."""
        try:
            opened = await asyncio.to_thread(open_document, data, self._fleet_key)
        except SnapshotError as error:
            self.refuse(source, error)
            return None
        return self._offer_opened(*opened, source=source)

    def _offer_opened(self, document: SignedSnapshot, snapshot: PolicySnapshot, *, source: str) -> bool | None:
        try:
            taken = self._take(document, snapshot)
        except SnapshotError as error:
            self.refuse(source, error)
            return None
        self.last_error = ""
        if taken:
            log.info("snapshot_in_force", version=document.version, epoch=document.epoch)
        return taken

    @property
    def is_kept(self) -> bool:
        """Whether all that is in force is on the disk; one that was full may have room by the next poll."""
        return self._kept_document is self.current and self._pending.keys() <= {
            item.epoch for item in self._kept.pending
        }

    async def keep(self) -> None:
        """Bring what is in force to the disk; from then on it is acknowledged. Goes on when its caller gives up."""
        await asyncio.shield(self._keep())

    def revoke(self, revocations: Sequence[Revocation]) -> None:
        """Deny at once what genuine revocations name. They are on the disk after `keep`."""
        fresh = [item for item in revocations if self._is_news(item)]
        if fresh:
            self._pending.update({item.epoch: item for item in fresh})
            log.info("revocations_in_force", epochs=[item.epoch for item in fresh])
            if self.current is not None and self._signed is not None:
                self._apply(self.current, without(self._signed, self._pending.values()))

    def acked(self, revocations: Sequence[Revocation]) -> tuple[int, ...]:
        """Epochs of those that are in force, and would be after a restart."""
        return tuple(item.epoch for item in revocations if self._is_kept(item))

    def refuse(self, source: str, error: SnapshotError) -> None:
        if str(error) != self.last_error:
            log.warning("snapshot_refused", source=source, why=str(error))
        self.last_error = str(error)

    def _take(self, document: SignedSnapshot, snapshot: PolicySnapshot) -> bool:
        """True when it came into force, False when it was already. Raises SnapshotError."""
        current = self.current
        self._check_epoch(document)
        if current is not None:
            if document.version == current.version and document.digest == current.digest:
                return False
            if document.version <= current.version:
                raise SnapshotError(f"snapshot v{document.version} is not newer than v{current.version}")
        pending = {epoch: item for epoch, item in self._pending.items() if epoch > document.epoch}
        self._apply(document, without(snapshot, pending.values()))
        self.current, self._signed, self._pending = document, snapshot, pending
        return True

    def _check_epoch(self, document: SignedSnapshot) -> None:
        """Raises SnapshotError for a document that lacks what was in force or acknowledged."""
        oldest = self.current.epoch if self.current is not None else 0
        if document.epoch < oldest:
            raise SnapshotError(f"snapshot of epoch {document.epoch} is older than epoch {oldest}")
        if epoch_reached(document.epoch, self._pending) < self._kept.epoch:
            raise SnapshotError(f"snapshot of epoch {document.epoch} is older than epoch {self._kept.epoch}")

    def _is_news(self, revocation: Revocation) -> bool:
        if revocation.epoch in self._pending or len(self._pending) >= PENDING_MAX:
            return False
        # Held even where the snapshot grants nothing of it: the next one may, when it was made before the revocation.
        # One of a past epoch that is not in force comes from a database that was restored: its snapshot will tell.
        return self.current is None or revocation.epoch > self.current.epoch

    def _is_kept(self, revocation: Revocation) -> bool:
        if any(item.epoch == revocation.epoch for item in self._kept.pending):
            return True
        if self.current is None or self._signed is None or self._kept_document is not self.current:
            return False
        return revocation.epoch <= self.current.epoch and in_force(revocation, self._signed)

    async def _keep(self) -> None:
        async with self._keeping:
            document = self.current
            if document is not None and document is not self._kept_document:
                try:
                    await asyncio.to_thread(lambda: self._disk.write(encode_document(document)))
                except OSError as error:
                    # Serving goes on (A18); only a restart without control plane would miss this version.
                    self._not_kept("snapshot", error)
                else:
                    self._kept_document, self.last_error = document, ""
            await self._keep_revocations()

    async def _keep_revocations(self) -> None:
        """All that the snapshot on the disk lacks, even where the one in force has it."""
        base = _epoch_of(self._kept_document)
        pending = {item.epoch: item for item in self._kept.pending if item.epoch > base} | self._pending
        epoch = max(self._kept.epoch, epoch_reached(base, pending))
        kept = KeptRevocations(epoch, tuple(pending[number] for number in sorted(pending)))
        if kept == self._kept:
            return
        try:
            await asyncio.to_thread(self._disk.write_revocations, kept)
        except OSError as error:
            self._not_kept("revocations", error)
            return
        self._kept = kept

    def _not_kept(self, what: str, error: OSError) -> None:
        """Said once, and to the control plane, which sees its revocations unacknowledged meanwhile."""
        why = f"{what} not kept on disk: {error.strerror}"
        if why != self.last_error:
            log.error("not_kept", what=what, why=error.strerror)
        self.last_error = why


def _epoch_of(document: SignedSnapshot | None) -> int:
    return 0 if document is None else document.epoch

"""What a router keeps on disk: the snapshot, to start and serve with everything else down, and revocations, so that
no restart brings back what was taken away.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from router.contract.revocation import Revocation
from router.contract.snapshot import SNAPSHOT_BYTES_MAX, SnapshotError

SNAPSHOT_FILE = "snapshot.json"
REVOCATIONS_FILE = "revocations.json"
REVOCATIONS_FILE_BYTES_MAX = 4 * 1024 * 1024


class KeptRevocations(msgspec.Struct, frozen=True):
    epoch: int = 0
    """The highest acknowledged: nothing that grants what a revocation up to it took away may ever be in force."""
    pending: tuple[Revocation, ...] = ()
    """Heard ahead of the snapshot that holds them."""


_decode_revocations = msgspec.json.Decoder(KeptRevocations).decode


@dataclass(frozen=True, slots=True)
class SnapshotDisk:
    folder: Path

    def read(self) -> bytes | None:
        """The snapshot; None when there is none. Raises SnapshotError when it cannot be read."""
        return self._read(SNAPSHOT_FILE, SNAPSHOT_BYTES_MAX)

    def write(self, document: bytes) -> None:
        """Whole or not at all, and on the disk when this returns. Raises OSError."""
        self._write(SNAPSHOT_FILE, document)

    def read_revocations(self) -> KeptRevocations:
        """Raises SnapshotError when they are there and cannot be read."""
        data = self._read(REVOCATIONS_FILE, REVOCATIONS_FILE_BYTES_MAX)
        try:
            return KeptRevocations() if data is None else _decode_revocations(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise SnapshotError("the revocations on disk are not readable") from None

    def write_revocations(self, kept: KeptRevocations) -> None:
        """As `write`."""
        self._write(REVOCATIONS_FILE, msgspec.json.encode(kept))

    def _read(self, name: str, bytes_max: int) -> bytes | None:
        path = self.folder / name
        try:
            if path.stat().st_size > bytes_max:
                raise SnapshotError(f"{name} on disk is over the size limit")
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SnapshotError(f"{name} on disk cannot be read: {error.strerror}") from None

    def _write(self, name: str, data: bytes) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / name
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            _sync_folder(self.folder)
        finally:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

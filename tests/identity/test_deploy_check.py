"""Django's deployment check finds nothing (S15)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_deployment_check_is_clean_behind_tls(run_dir: Path) -> None:
    environment = {**os.environ, "TIDEMARK_RUN_DIR": str(run_dir), "TIDEMARK_SECURE_COOKIES": "true",
                   "DJANGO_SETTINGS_MODULE": "controlplane.settings"}  # fmt: skip
    run = [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"]
    done = subprocess.run(run, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr

"""The worker guard as a module: it is one file for the workers' own Python, outside of every package."""

from __future__ import annotations

import importlib.util
from pathlib import Path

FILE = Path(__file__).resolve().parents[2] / "docker" / "guard" / "tidemark_guard.py"
_spec = importlib.util.spec_from_file_location("tidemark_guard", FILE)
assert _spec is not None and _spec.loader is not None
guard = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(guard)

"""What routers recorded of a question's traffic: how much there is, and as a file for the simulator."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from controlplane.telemetry.windows import Scope


def recorded_requests(scope: Scope) -> int:
    """Of the scope's traffic in its span."""
    source = _source()
    return 0 if source is None else int(source.recorded_extent(scope).requests)


def write(scope: Scope, path: Path, *, limit: int) -> int:
    """The newest `limit` of them, by time. How many were written."""
    source = _source()
    return 0 if source is None else int(source.write_recorded(scope, path, limit=limit))


def _source() -> Any:
    try:
        return import_module("controlplane.telemetry.recorded")
    except ImportError:
        return None

"""Which ports the benchmark's processes listen on, 200 of them from `TIDEMARK_BENCH_PORT` (default 28100) on."""

from __future__ import annotations

import os

FIRST = int(os.environ.get("TIDEMARK_BENCH_PORT", "28100"))
BACKENDS = range(FIRST, FIRST + 4)
"""The four mock workers."""
EVENTS_PORT, REPLAY_PORT = FIRST + 10, FIRST + 11
"""KV events of a worker in exact mode."""


def proxy_ports() -> range:
    """One for each proxy; their own metrics and admin ports are 60 higher."""
    return range(FIRST + 50, FIRST + 100)

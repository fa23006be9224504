"""How late telemetry is stored: sampled from what the ingester notes of each source."""

from __future__ import annotations

import asyncio
from datetime import datetime

from controlplane.telemetry.models import SourceProgress

SAMPLE_EVERY_S = 0.5

Lags = dict[tuple[str, datetime], float]


async def sample_lags(lags: Lags) -> None:
    """Adds, until cancelled, (source, second) → milliseconds from the END of that second to its commit."""
    while True:
        lags.update(await asyncio.to_thread(_newest))
        await asyncio.sleep(SAMPLE_EVERY_S)


def _newest() -> Lags:
    rows = SourceProgress.objects.values_list("source", "last_at", "applied_at")
    return {
        (source, last_at): max(0.0, (applied_at - last_at).total_seconds() - 1.0) * 1000
        for source, last_at, applied_at in rows
    }

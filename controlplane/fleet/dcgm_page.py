"""Reads a node's DCGM exporter page: GPU utilisation, memory, power, Xid errors. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from controlplane.fleet.metrics_page import parse_sample

UTILISATION = "DCGM_FI_DEV_GPU_UTIL"
MEMORY_USED = "DCGM_FI_DEV_FB_USED"
MEMORY_FREE = "DCGM_FI_DEV_FB_FREE"
POWER = "DCGM_FI_DEV_POWER_USAGE"
XID = "DCGM_FI_DEV_XID_ERRORS"
FIELDS = (UTILISATION, MEMORY_USED, MEMORY_FREE, POWER, XID)


@dataclass(frozen=True, slots=True)
class GpuReading:
    """All GPUs of the page together. None is unknown."""

    utilisation: float | None = None
    """Mean over GPUs, 0…1."""
    memory_used_mib: float | None = None
    memory_total_mib: float | None = None
    power_w: float | None = None
    """Sum over GPUs."""
    xid: int | None = None
    """The last Xid error code of any GPU; 0 = none."""

    def as_json(self) -> dict[str, float]:
        """The known figures only."""
        names = ("utilisation", "memory_used_mib", "memory_total_mib", "power_w", "xid")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


def read_dcgm_page(text: str) -> GpuReading:
    """Never raises for content: what cannot be read stays None."""
    values: dict[str, list[float]] = {}
    for line in text.split("\n"):
        if line.startswith(FIELDS):
            sample = parse_sample(line)
            if sample is not None and 0 <= sample.value < math.inf:
                values.setdefault(sample.name, []).append(sample.value)
    utilisation = values.get(UTILISATION)
    used, free = values.get(MEMORY_USED), values.get(MEMORY_FREE)
    return GpuReading(
        utilisation=sum(utilisation) / len(utilisation) / 100 if utilisation else None,
        memory_used_mib=sum(used) if used else None,
        memory_total_mib=sum(used) + sum(free) if used and free and len(used) == len(free) else None,
        power_w=sum(values[POWER]) if POWER in values else None,
        xid=int(max(values[XID])) if XID in values else None,
    )

"""A DCGM-exporter-shaped page of the modelled GPU, at `/dcgm/metrics`.

Field names, help texts and labels are those of dcgm-exporter's default counters.
"""

from __future__ import annotations

from simulator.engine import Engine

MEMORY_MIB = 81_559
"""Framebuffer of an H100 SXM 80 GB as `nvidia-smi` reports it."""
USED_MIB = round(MEMORY_MIB * 0.92)
"""vLLM reserves its share (0.92) at start, whatever the load."""
POWER_IDLE_W, POWER_MAX_W = 115.0, 700.0
"""Idle with a context; 700 W is the board's limit (NVIDIA data sheet)."""


def dcgm_page(*, engine: Engine, name: str, gpu_index: int, busy_share: float) -> bytes:
    """`busy_share`: share (0–1) of the last second in which the engine computed."""
    labels = (
        f'gpu="{gpu_index}",UUID="GPU-{name}",device="nvidia{gpu_index}",modelName="NVIDIA H100 80GB HBM3",'
        f'Hostname="{name}"'
    )
    load = busy_share * (0.7 + 0.3 * engine.cache.pinned_share)
    power_w = POWER_IDLE_W + (POWER_MAX_W - POWER_IDLE_W) * load
    families = (
        ("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", f"{round(busy_share * 100)}"),
        ("DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB).", f"{MEMORY_MIB - USED_MIB}"),
        ("DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB).", f"{USED_MIB}"),
        ("DCGM_FI_DEV_POWER_USAGE", "Power draw (in W).", f"{power_w:.3f}"),
        ("DCGM_FI_DEV_XID_ERRORS", "Value of the last XID error encountered.", "0"),
    )
    lines = [
        f"# HELP {field} {text}\n# TYPE {field} gauge\n{field}{{{labels}}} {value}\n" for field, text, value in families
    ]
    return "".join(lines).encode()

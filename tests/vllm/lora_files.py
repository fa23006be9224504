"""LoRA adapters of random weights for the lab's model, written without any model library."""

from __future__ import annotations

import json
import random
import struct
from array import array
from pathlib import Path

HIDDEN, RANK, LAYERS = 128, 4, 2
MODULES = ("q_proj", "v_proj")
"""Of the lab's model (`docker/lab/mk_model.py`)."""


def write_adapter(folder: Path, *, seed: int) -> Path:
    """The folder, with `adapter_config.json` and `adapter_model.safetensors` in it."""
    folder.mkdir(parents=True)
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK, "target_modules": list(MODULES), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    draw, header, data = random.Random(seed), {}, b""
    for layer in range(LAYERS):
        for module in MODULES:
            for name, shape in (("lora_A", [RANK, HIDDEN]), ("lora_B", [HIDDEN, RANK])):
                weights = array("f", (draw.gauss(0, 0.05) for _ in range(HIDDEN * RANK))).tobytes()
                key = f"base_model.model.model.layers.{layer}.self_attn.{module}.{name}.weight"
                header[key] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(weights)]}
                data += weights
    head = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
    return folder

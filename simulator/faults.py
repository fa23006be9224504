"""What a worker is told to do wrong, at start (`--fault name=value`) or by `POST /sim/faults`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
METRICS_SLOW_S = 6.0
"""Longer than any sensible scrape deadline."""
METRICS_HUGE_BYTES = 24 * 1024 * 1024
"""About 400 times a real page."""


class Faults(msgspec.Struct, forbid_unknown_fields=True):
    """All off by default. `POST /sim/faults` replaces the fields it names and keeps the others."""

    slow: Annotated[float, msgspec.Meta(gt=0.0, le=1000.0)] = 1.0
    """Every engine step takes this many times as long."""
    hang: bool = False
    """The engine stops: accepted requests get headers at most; /health and /metrics go on."""
    status: Literal[500, 429] | None = None
    """Every inference request is answered with this status."""
    error_rate: Share = 0.0
    """Share of inference requests answered with 500."""
    die_mid_stream: Share = 0.0
    """Share of answers whose connection breaks after the first token, without an end."""
    drop_events: Share = 0.0
    """Share of KV-event batches that are numbered and replayable but not published."""
    lie_hits: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Added to `cached_tokens` in every usage block (up to the prompt's length)."""
    drop_offers: bool = False
    """What the worker offers to others (`--nixl`) is not there when they come for it."""
    ignore_salt: bool = False
    """Blocks are hashed without the salt, so another tenant's equal prompt hits."""
    metrics: Literal["garbage", "nan", "slow", "huge", "reset"] | None = None
    """What is wrong with /metrics. `reset` zeroes the counters once, as a restart does, and clears itself."""


def parse_fault_flag(text: str) -> dict[str, object]:
    """`slow=3`, `hang=true`, `metrics=nan` → one field. Raises ValueError naming what is wrong."""
    name, separator, value = text.partition("=")
    if not separator:
        raise ValueError(f"--fault needs name=value, got {text!r}")
    try:
        return {name: msgspec.json.decode(value)}
    except msgspec.DecodeError:
        return {name: value}


def changed(faults: Faults, fields: object) -> Faults:
    """`faults` with some fields replaced. Raises ValueError (msgspec.ValidationError) for a bad field or value."""
    if not isinstance(fields, dict):
        raise ValueError("faults are a JSON object")
    return msgspec.convert({**msgspec.to_builtins(faults), **fields}, Faults)

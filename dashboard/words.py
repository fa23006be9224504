"""Words and units for what settings, facts and decisions carry as names of code."""

from __future__ import annotations

from typing import Any

from dashboard import numbers

LABELS = {
    "low": "Low watermark",
    "high": "High watermark",
    "dwell_s": "Dwell",
    "routing": "Routing",
    "virtual_nodes": "Virtual nodes of a worker",
    "spill_outstanding": "Spill at outstanding requests",
    "block_size": "Block size",
    "prefill_tokens_per_s": "Prefill speed",
    "tokenizer": "Tokenizer",
    "kv_bytes_per_token": "KV of a token",
    "transfer_gib_per_s": "Transfer speed",
    "transfer": "KV between workers",
    "priority": "Priority",
    "ttft_slo_ms": "TTFT objective",
    "shed_over_slo": "Shed what would miss the objective",
    "on_stale": "When its policy is stale",
    "unknown_fields": "Fields of requests that nobody knows",
    "hash_algorithm": "Hash algorithm",
    "kv_blocks": "KV blocks",
    "prefix_caching": "Prefix caching",
    "version": "Version",
    "models": "Models",
    "events": "KV events",
    "event_buffer_steps": "Events kept for replay",
    "usage_details": "Names cached tokens",
}
_SHARES = frozenset({"low", "high"})
_UNITS = {
    "block_size": "tokens",
    "prefill_tokens_per_s": "tokens/s",
    "kv_bytes_per_token": "bytes",
    "transfer_gib_per_s": "GiB/s",
    "spill_outstanding": "requests",
}
WORDS = {
    "prefix": "cached prefix",
    "session": "same session",
    "home": "home of the prefix",
    "spill_load": "spilled: load",
    "spill_watermark": "spilled: watermark",
    "least_outstanding": "least loaded",
    "round_robin": "round robin",
    "retry": "retried",
    "semi_static": "semi-static",
    "namespace.sharing": "sharing",
}
"""Reasons of decisions and kinds of things → words."""


def label(name: str) -> str:
    """`dwell_s` → "Dwell"; a name without words of its own loses its underscores."""
    return LABELS.get(name) or name.replace("_", " ").capitalize()


def valued(value: Any, name: str) -> str:
    """The value of the setting or fact `name` with its unit, as a person reads it."""
    if value is None or value == "":
        return numbers.UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(str(part) for part in value)
    if not isinstance(value, int | float):
        return str(value).replace("_", " ")
    if name in _SHARES:
        return numbers.percent(value)
    if name.endswith("_ms"):
        return numbers.milliseconds(value)
    if name == "dwell_s":
        return numbers.seconds(value)
    unit = _UNITS.get(name, "")
    return f"{numbers.count(value)} {unit}".rstrip()


def worded(name: str) -> str:
    """`least_outstanding` → "least loaded"; a name without words of its own loses its underscores."""
    return WORDS.get(name) or name.replace("_", " ")


def person(actor: str) -> str:
    """`user:ada` → "ada"; `system:migration` → "Tidemark (migration)"."""
    kind, colon, name = actor.partition(":")
    if not colon:
        return actor
    return {"user": name, "system": f"Tidemark ({name})"}.get(kind, f"{kind} {name}")

"""Shipments for tests."""

from __future__ import annotations

from typing import Any

from router.contract.telemetry import RequestRow, RouterState, Shipment, encode_shipment

STATE = RouterState(snapshot_version=7, snapshot_age_s=0.5, inflight=2, index_blocks=10, index_bytes=1000)


def row(**values: Any) -> RequestRow:
    """Two requests of one tenant on one worker."""
    given: dict[str, Any] = {
        "tenant": "acme", "namespace": "acme/chat", "pool": "p", "worker": "p/w1", "model": "llama", "requests": 2,
        "prompt_tokens": 100, "output_tokens": 10, "usage_known": 2, "hit_known": 2, "hit_tokens": 40,
        "hit_prompt_tokens": 100, "predicted_hit_tokens": 50, "saved_prefill_ms": 12.5, "ttft_hit": {90: 1},
        "ttft_miss": {130: 1}, "slo_met": 1, "slo_known": 2,
    }  # fmt: skip
    return RequestRow(**(given | values))


def shipment(seq: int, at: float, *, source: str = "r1", boot: str = "b1", **parts: Any) -> bytes:
    given: dict[str, Any] = {"router": STATE} if not parts.get("kv") else {}
    return encode_shipment(Shipment(source=source, boot=boot, seq=seq, at=at, **(given | parts)))

"""Explained requests of two tenants: one whole, one retried, one refused, one without a stream."""

from __future__ import annotations

from datetime import datetime

from controlplane.telemetry.ingest import apply_entries
from router.contract.telemetry import Candidate, DecisionSample, Shipment, encode_shipment
from tests.dashboard import story

WHOLE, RETRIED, REFUSED, FOREIGN = "req-whole", "req-retried", "req-refused", "req-foreign"
CANDIDATES = [
    Candidate(
        worker="demo/w2", matched_tokens=6144, saved_ms=682.7, queue_ms=41.2, pressure_ms=9, net_ms=632.5,
        outstanding=7, kv_use=0.71,
    ),
    Candidate(worker="demo/w4", matched_tokens=0, queue_ms=5, net_ms=-5, outstanding=1, kv_use=0.2),
    Candidate(
        worker="demo/w1", matched_tokens=7168, saved_ms=796.4, queue_ms=640, net_ms=156.4, outstanding=12, kv_use=0.83
    ),
    Candidate(worker="demo/w3", excluded="drain"),
]  # fmt: skip


def samples(at_s: float) -> list[DecisionSample]:
    whole = DecisionSample(
        at=at_s, request_id=WHOLE, tenant="acme", namespace="acme/support", pool=story.POOL, model=story.MODEL,
        policy_version=12, worker="demo/w2", reason="prefix", candidates=CANDIDATES, prompt_tokens=8192,
        sentence="w2: holds 6,144 tokens, saves 683 ms of prefill for 41 ms of queue; least-loaded w4 would have"
        " recomputed 8,192 tokens for 5 ms of queue.",
        template="desk@2", predicted_hit_tokens=6144, cached_tokens=6128, ttft_ms=280.0, duration_ms=2280.0,
        decision_us=60.0, predicted_prompt_tokens=8192, output_tokens=100, predicted_ttft_ms=270.0, auth_us=12.0,
        fingerprint_us=18.0, queue_ms=40.0,
    )  # fmt: skip
    retried = DecisionSample(
        at=at_s - 1, request_id=RETRIED, tenant="acme", namespace="acme/search", pool=story.POOL, model="other",
        policy_version=12, worker="demo/w1", reason="retry", spill="retry", preferred="demo/w3", prompt_tokens=4000,
        sentence="w1: holds nothing of the prompt, 3 ms of queue, 5 requests under way.", predicted_hit_tokens=3072,
        cached_tokens=512, ttft_ms=6200.0, duration_ms=7000.0, decision_us=50.0, retries=1, retried_after_ms=5000.0,
        connect_ms=3.0,
    )  # fmt: skip
    refused = DecisionSample(
        at=at_s - 2, request_id=REFUSED, tenant="acme", namespace="acme/support", pool=story.POOL, model=story.MODEL,
        policy_version=12, worker="demo/w3", reason="home", sentence="w3: home of a prefix no worker holds.",
        outcome="upstream_error", status=502, duration_ms=14.0, decision_us=44.0,
    )  # fmt: skip
    foreign = DecisionSample(
        at=at_s - 3, request_id=FOREIGN, tenant="globex", namespace="globex/agents", pool=story.POOL, model=story.MODEL,
        policy_version=12, worker="demo/w3", reason="home", sentence="w3: home.", ttft_ms=90.0, duration_ms=300.0,
        prompt_tokens=700, cached_tokens=0,
    )  # fmt: skip
    return [whole, retried, refused, foreign]


def tell(now: datetime) -> None:
    at_s = float(int(now.timestamp()) - 5)
    shipment = Shipment(source="router-7", boot="b", seq=1, at=at_s, decisions=samples(at_s))
    applied = apply_entries([encode_shipment(shipment)], now=now)
    assert not applied.refused, applied.refused


def seed() -> None:
    """For a site of its own: the newest requests of the list."""
    tell(story.utc_now())

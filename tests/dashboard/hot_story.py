"""A fleet with a hot prefix on one worker: heat, explained decisions and placement rules, told as routers tell them."""

from __future__ import annotations

import random
from datetime import datetime, timedelta

from controlplane.placements.services import revert_placement, spread_prefix
from controlplane.telemetry.ingest import apply_entries
from router.contract.telemetry import Candidate, DecisionSample, PrefixHeat, RouterState, Shipment, encode_shipment
from tests.dashboard import story

HOT, WARM = "5eed00000000a001", "5eed00000000a002"
ACTOR = "user:olga"


def make() -> None:
    """For a site that is looked at: the story's own fleet is there already."""
    tell_hot(story.utc_now(), minutes=12)


def tell_hot(now: datetime, *, minutes: int = 5, ruled: bool = True) -> None:
    """HOT of acme/support is on w2 for the most part; a rule spreads WARM, another was reverted."""
    rng = random.Random(3)
    shipments = [_second(rng, int(now.timestamp()) - 1 - step * 5, step) for step in reversed(range(minutes * 12))]
    applied = apply_entries([encode_shipment(shipment) for shipment in shipments], now=now)
    assert not applied.refused, applied.refused[:3]
    if ruled:
        _rule(WARM, "globex/agents", now)
        row = _rule(HOT, "acme/support", now, homes=2, reason="tried before the launch")
        revert_placement(row, actor=ACTOR, reason="calm")


def _rule(prefix: str, namespace: str, now: datetime, *, homes: int = 3, reason: str = "launch day") -> int:
    return spread_prefix(
        actor=ACTOR, namespace=namespace, pool=story.POOL, prefix=prefix, homes=homes,
        until=now + timedelta(hours=2), reason=reason,
    ).pk  # fmt: skip


def _second(rng: random.Random, at_s: int, step: int) -> Shipment:
    heat = [
        _heat(HOT, "acme/support", {"demo/w2": 14 + step % 4, "demo/w1": 2, "demo/w3": 1}, head=6144, queue_ms=210),
        _heat(WARM, "globex/agents", {"demo/w1": 3, "demo/w2": 3, "demo/w4": 2}, head=2048, queue_ms=40, placed=True),
    ]
    heat += [
        _heat(f"{0xC01D << 40 | number:016x}", "acme/search", {f"demo/w{number % 4 + 1}": 1 + number % 3}, head=512)
        for number in range(12)
    ]
    return Shipment(
        source="router-hot",
        boot="h",
        seq=at_s,
        at=float(at_s),
        heat=heat,
        decisions=[_decision(rng, at_s, step)] if step % 3 == 0 else [],
        router=RouterState(snapshot_version=12, snapshot_age_s=1.0, inflight=3, index_blocks=1, index_bytes=1),
    )


def _heat(
    prefix: str, namespace: str, by_worker: dict[str, int], *, head: int, queue_ms: float = 15, placed: bool = False
) -> PrefixHeat:
    requests = sum(by_worker.values())
    return PrefixHeat(
        prefix=prefix,
        namespace=namespace,
        pool=story.POOL,
        tokens=512,
        by_worker=by_worker,
        head_tokens=head,
        prompt_tokens=requests * (head + 900),
        hit_tokens=requests * head,
        queue_ms=requests * queue_ms,
        spills=1 if queue_ms > 100 else 0,
        placed=requests if placed else 0,
        load=0.72 if queue_ms > 100 else 0.11,
        homes=3 if placed else 1,
        holders=list(by_worker),
    )


def _decision(rng: random.Random, at_s: int, step: int) -> DecisionSample:
    spilled = step % 2 == 1
    candidates = [
        Candidate("demo/w2", 6144, 650, rng.uniform(120, 900), net_ms=80, outstanding=11, prefill_tokens_per_s=9000),
        Candidate("demo/w1", rng.choice((0, 512, 2048)), 60, rng.uniform(5, 60), net_ms=95, prefill_tokens_per_s=9000),
        Candidate("demo/w3", 512, 54, rng.uniform(5, 90), net_ms=-5, outstanding=2, prefill_tokens_per_s=9000),
    ]
    return DecisionSample(
        at=float(at_s),
        request_id=f"hot-{at_s:x}",
        tenant="acme",
        namespace="acme/support",
        pool=story.POOL,
        model=story.MODEL,
        policy_version=12,
        worker="demo/w1" if spilled else "demo/w2",
        reason="spill_load" if spilled else "prefix",
        sentence="demo/w1: holds nothing of the prompt.",
        candidates=candidates,
        prompt_tokens=7000,
        preferred="demo/w2",
        spill="load" if spilled else "",
        prefix=HOT,
    )

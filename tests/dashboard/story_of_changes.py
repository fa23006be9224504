"""A change with a past on both its sides, for eyes and browsers: a watermark was set, and first tokens come sooner."""

from __future__ import annotations

import math
import random

from django.db import transaction

from controlplane.audit.services import record
from controlplane.telemetry.ingest import apply_entries
from router.adapters.telemetry_reach import Reach
from router.contract.telemetry import RequestRow, Shipment, encode_shipment
from tests.dashboard import story

MINUTES = 24


def tell() -> None:
    """The change was made in the middle of the last MINUTES; the audit row is as old as its writing, so the range ends
    where the newest telemetry does."""
    now = story.utc_now()
    rng = random.Random(4)
    entries = [_minute(rng, index, now.timestamp()) for index in range(MINUTES)]
    assert not apply_entries(entries, now=now).refused
    with transaction.atomic():
        record(
            actor="user:olga", action="watermark.set", object_type="watermark", object_id=f"pool:{story.POOL}",
            before={"high": 0.8}, after={"high": 0.9}, affects_routing=False,
        )  # fmt: skip


def _minute(rng: random.Random, index: int, now_s: float) -> bytes:
    factor = 1.0 if index < MINUTES // 2 else 0.7
    row = RequestRow(tenant="acme", namespace="acme/support", pool=story.POOL, worker="demo/w1", model=story.MODEL)
    row.template = "support@2" if index % 2 else "support@1"
    reach = Reach()
    for _ in range(40):
        tokens = rng.choice((400, 1500, 6000, 20_000))
        hits = rng.random() < 0.5
        reach.count_ttft(
            row,
            ttft_ms=rng.lognormvariate(math.log(factor * (60 + tokens / (40 if hits else 9))), 0.3),
            prompt_tokens=tokens,
            cached_tokens=tokens if hits else 0,
            beside=rng.choice((0, 2, 8)),
        )
    reach.put(row)
    at = now_s - 60 * (MINUTES - index)
    return encode_shipment(Shipment(source="router-2", boot="changes", seq=index, at=at, requests=[row]))

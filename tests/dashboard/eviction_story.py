"""A fleet whose caches are too small: blocks are evicted, mostly for another namespace, and some come back soon."""

from __future__ import annotations

from datetime import datetime

from controlplane.telemetry.ingest import apply_entries
from controlplane.telemetry.merge import Contribution
from controlplane.telemetry.rollups import WORKER_TABLE, add
from router.contract.histogram import Buckets, bucket_of
from router.contract.telemetry import KvRow, Shipment, encode_shipment
from tests.dashboard import story

EVICTED = {
    "globex/agents>acme/support": 60,
    "acme/support>acme/support": 20,
    "acme/support>globex/agents": 6,
    "initech/reports>globex/agents": 4,
    ">acme/search": 6,
    "*>initech/reports": 4,
}
"""Blocks of one worker and step; 100 in all."""
RESTORED = {"acme/support": 20, "globex/agents": 5}
USES = {"demo/w1": 0.3, "demo/w2": 0.9, "demo/w3": 0.7, "demo/w4": 0.5}


def make() -> None:
    tell(story.utc_now(), minutes=12)


def tell(now: datetime, *, minutes: int = 3) -> None:
    """Every five seconds each worker reports one second; w4 hears nothing."""
    begin = int(now.timestamp()) - 1
    times = [begin - step * 5 for step in range(minutes * 12)]
    shipments = [Shipment("kv-events", "evictions", at, float(at), kv=_rows()) for at in reversed(times)]
    assert not apply_entries([encode_shipment(shipment) for shipment in shipments], now=now).refused
    add(WORKER_TABLE, [_poll(worker, use, at) for at in times for worker, use in USES.items()], now_s=now.timestamp())


def _rows() -> list[KvRow]:
    rows = [
        KvRow(
            worker=worker,
            stored_blocks=110,
            removed_blocks=100,
            restored_blocks=25,
            resident_blocks=9000,
            evicted=EVICTED,
            restored_of=RESTORED,
            lifetime=_seconds(20, 60, 20),
            restore_gap=_seconds(5, 15, 5),
        )
        for worker in ("demo/w1", "demo/w2", "demo/w3")
    ]
    return [*rows, KvRow(worker="demo/w4", state="down")]


def _seconds(short: int, middle: int, long: int) -> Buckets:
    """Blocks of 2, 45 and 900 s."""
    return {bucket_of(2000.0): short, bucket_of(45_000.0): middle, bucket_of(900_000.0): long}


def _poll(worker: str, use: float, at: int) -> Contribution:
    values = {"polls_ok": 1, "kv_use_sum": use, "kv_use_max": use, "kv_use_samples": 1}
    return Contribution(float(at), (worker,), values)

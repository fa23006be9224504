"""A small recording: sessions that share their tenant's head, told as routers ship it."""

from __future__ import annotations

import random
from datetime import datetime, timedelta

from controlplane.telemetry.ingest import apply_entries
from router.contract.recorded import ANCHOR_BYTES, TEXT_BLOCK_BYTES, RecordedRequest, anchor_positions
from router.contract.telemetry import Shipment, encode_shipment

HEAD_BLOCKS = 16
TURN_BLOCKS = 8
"""Of text, that a turn of a session adds."""
BYTES_A_TOKEN = 4
HIT_SHARE = 0.6
"""Of a prompt, told as delivered."""


def tell_recorded(
    now: datetime, *, tenant: str = "acme", namespace: str = "support", pool: str = "demo", sessions: int = 30,
    turns: int = 4, minutes: int = 10,
) -> int:  # fmt: skip
    """`sessions` of that many turns in the minutes before `now`. How many requests."""
    rng = random.Random(f"{tenant}/{namespace}")
    begin = now - timedelta(minutes=minutes)
    requests: list[RecordedRequest] = []
    for session in range(sessions):
        at = begin.timestamp() + minutes * 60 * 0.8 * session / sessions
        for turn in range(turns):
            blocks = HEAD_BLOCKS + TURN_BLOCKS * (turn + 1)
            requests.append(_request(at, tenant, namespace, pool, session, blocks))
            at += rng.uniform(5, 15)
    requests = sorted((each for each in requests if each.at < now.timestamp()), key=lambda request: request.at)
    shipment = Shipment(source=f"router-{tenant}", boot="b", seq=1, at=now.timestamp() - 1, recorded=requests)
    applied = apply_entries([encode_shipment(shipment)], now=now)
    assert not applied.refused, applied.refused
    return len(requests)


def _request(at: float, tenant: str, namespace: str, pool: str, session: int, blocks: int) -> RecordedRequest:
    tokens = blocks * TEXT_BLOCK_BYTES // BYTES_A_TOKEN
    anchors = b"".join(_anchor(tenant, session, position) for position in anchor_positions(blocks))
    return RecordedRequest(
        at=at, tenant=tenant, namespace=f"{tenant}/{namespace}", pool=pool, model="sim-llama", worker=f"{pool}/w1",
        prompt_tokens=tokens, output_tokens=40, cached_tokens=int(tokens * HIT_SHARE), ttft_ms=120.0,
        text_bytes=blocks * TEXT_BLOCK_BYTES, anchors=anchors, unit=_anchor(tenant, session, 0),
        head_blocks=HEAD_BLOCKS,
    )  # fmt: skip


def _anchor(tenant: str, session: int, position: int) -> bytes:
    """The same for all of a tenant's within the head, a session's own behind it."""
    whose = f"{tenant}" if 0 < position <= HEAD_BLOCKS else f"{tenant}-{session}"
    return random.Random(f"{whose}:{position}").randbytes(ANCHOR_BYTES)

"""Recorded traffic: when a request came, how long it was, what it hit, and which prefixes it shares. Never its text.

A recording answers what a change of the fleet would have done to this very traffic: the fleet simulator replays it.
Of a prompt it keeps anchors: keyed hashes of its head at the positions of `anchor_positions`. Two prompts with the same
anchor at a position agree up to there.

Anchors are 64 bits wide. Two different heads get the same one with probability 2^-64; among n of them some pair does
with n² / 2^65. A day at 20 requests a second with 50 anchors each has n = 8.6e7, so the chance that one pair of the day
meets is 2e-4, and it would cost one wrongly shared head in a simulation.

The key of the hashes is derived from the fleet key, the tenant and the cache salt of the namespace's generation
(`router.adapters.recording`): equal texts of two tenants share no anchor, and none outlives a rotation of the salt.

As a file a recording is one JSON object a line (gzip by its suffix): a `RecordingHead`, then `RecordedRequest`s.
"""

from __future__ import annotations

import msgspec

ANCHOR_BYTES = 8
TEXT_BLOCK_BYTES = 512
"""Of canonical text: what positions count. The fingerprint's own block (`CoreLimits.block_bytes`)."""
ANCHORS_AN_OCTAVE = 16
"""Positions between a length and its double: the end of a shared head is known within 1/16 of its length."""
ANCHORS_MAX = 256
"""In a record: heads of 16 MiB of text and more."""
RECORDED_MAX = 2_000
"""In a shipment."""
FORMAT = "tidemark-recording/1"


class RecordedRequest(msgspec.Struct, omit_defaults=True):
    """One request that reached a worker. What is None is unknown."""

    at: float
    """When all of it was here, Unix time."""
    tenant: str
    namespace: str
    pool: str
    model: str
    worker: str
    prompt_tokens: int
    output_tokens: int = 0
    cached_tokens: int | None = None
    """Delivered, by the worker's word."""
    ttft_ms: float | None = None
    """Of streams."""
    duration_ms: float | None = None
    """Until the answer's end."""
    template: str = ""
    text_bytes: int = 0
    """Of canonical text; 0 = the prompt cannot be compared (images, token ids)."""
    anchors: bytes = b""
    """ANCHOR_BYTES each, at the `anchor_positions` of its whole text blocks."""
    unit: bytes = b""
    """ANCHOR_BYTES: what is kept or left out together, as a session's requests are."""
    head_blocks: int = 0
    """Text blocks at its front that many units share; the unit parts from the others behind them."""
    share: float = 1.0
    """Of the units that were being kept when it came: 0 < share ≤ 1."""


class Broken(msgspec.Struct, omit_defaults=True):
    """Prompts that something changing in front cuts off their common text, as routers looked at them."""

    namespace: str
    template: str = ""
    prompts: int = 0
    looked_at: int = 0
    position_bytes: int = 0
    """Where the change begins."""
    lost_bytes: int = 0
    """Text behind it, a prompt in the mean, that was the same all the same."""


class RecordingHead(msgspec.Struct):
    """First line of a recording's file."""

    format: str = FORMAT
    since: float = 0.0
    until: float = 0.0
    pool: str = ""
    """"" = several."""
    routers: int = 1
    """That recorded: each kept its own share of the traffic that passed through it."""
    dropped: int = 0
    """Records of the time that were lost on their way."""
    broken: list[Broken] = []


def anchor_positions(blocks: int) -> list[int]:
    """Ends, in text blocks, at which a prompt of so many whole blocks has anchors; powers of two are among them."""
    found: list[int] = []
    at = 1
    while at <= blocks and len(found) < ANCHORS_MAX:
        found.append(at)
        at += max(1, (1 << (at.bit_length() - 1)) // ANCHORS_AN_OCTAVE)
    return found

"""What routers tell each other four times a second: the load that each of them has put on the workers, and what they
sent where.

Kept in the hash `channels.PEER_LOAD_HASH`, router id → JSON of a RouterLoad. A hint with an age: a router that cannot
read it goes on with its own ledger and the pollers' figures.
"""

from __future__ import annotations

import msgspec


class WorkerShare(msgspec.Struct, frozen=True, array_like=True):
    """One router's requests on one worker; on the wire `[requests, prefill tokens]`."""

    requests: int
    prefill_tokens: float
    """Uncached prompt tokens of those that wait for their first byte, less the predicted progress."""


class PlacedPrompts(msgspec.Struct, frozen=True, array_like=True):
    """Prompts of a tenant that went to a worker, as keyed 128-bit names of places in them: 16 bytes each, joined."""

    tenant: str
    worker: str
    anchors: bytes


class PlacedBatch(msgspec.Struct, frozen=True, array_like=True):
    """What was sent where between two publications; `seq` is the later one's."""

    seq: int
    prompts: tuple[PlacedPrompts, ...]


class RouterLoad(msgspec.Struct, frozen=True, omit_defaults=True):
    router: str
    boot: str
    seq: int
    """Grows with each publication: how a reader sees that the router lives, whatever its clock says."""
    snapshot_version: int = 0
    workers: dict[str, WorkerShare] = {}
    """Worker id → share; workers without requests are left out."""
    placed: tuple[PlacedBatch, ...] = ()
    """The last PLACED_BATCHES, oldest first: a reader that misses a publication or two misses nothing."""


PLACED_BATCHES = 4
"""A second's worth: at most 4 × 1,024 anchors of 22 characters, 90 KB."""


LOAD_BYTES_MAX = 256 * 1024
"""1,000 workers at about 60 bytes each, four times over."""

encode_load = msgspec.json.Encoder().encode
decode_load = msgspec.json.Decoder(RouterLoad).decode

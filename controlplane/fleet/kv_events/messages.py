"""Decodes a vLLM event batch as far as counting needs it.

Token ids and everything else that is not declared here is skipped by the decoder: no object is ever made of it. Extra
keys, which carry the salt in clear, stay undecoded until `first_salt` looks at those of a chain's first block. Layout:
`[ts, events, data_parallel_rank]`, each event a map with `type`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

PAYLOAD_BYTES_MAX = 32 * 1024 * 1024
"""A 1M-token prompt's event is about 5 MB."""
HASHES_MAX = 262_144
"""Block hashes of one event; more is refused."""
EVENTS_MAX = 65_536
"""Events of one batch."""

BlockHash = int | bytes
"""The low 64 bits of sha256, or all 32 bytes of it."""


class EventRefused(ValueError):
    """The payload is not a batch, or a part of it is out of bounds. Quotes nothing of it."""


class Event(msgspec.Struct):
    type: str
    """`BlockStored`, `BlockRemoved`, `AllBlocksCleared`; other kinds are ignored."""
    block_hashes: Annotated[list[BlockHash], msgspec.Meta(max_length=HASHES_MAX)] = []
    medium: str | None = None
    group_idx: int | None = None
    parent_block_hash: BlockHash | None = None
    """Of `BlockStored`: the block before the first one; None = the first one begins a chain."""
    lora_name: str | None = None
    extra_keys: msgspec.Raw = msgspec.Raw()
    """Of each block what its hash binds beside tokens."""


class Batch(msgspec.Struct, array_like=True):
    ts: float
    """Unix seconds of the worker."""
    events: Annotated[list[Event], msgspec.Meta(max_length=EVENTS_MAX)]


_decoder = msgspec.msgpack.Decoder(Batch)
_keys_decoder = msgspec.msgpack.Decoder(Annotated[list[msgspec.Raw], msgspec.Meta(max_length=HASHES_MAX)])
_first_keys_decoder = msgspec.msgpack.Decoder(list[object] | None)


def decode_batch(payload: bytes) -> Batch:
    """Raises EventRefused."""
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise EventRefused("larger than any batch")
    try:
        batch = _decoder.decode(payload)
    except (msgspec.DecodeError, RecursionError):
        raise EventRefused("not an event batch") from None
    for event in batch.events:
        if any(isinstance(block, bytes) and len(block) != 32 for block in event.block_hashes):
            raise EventRefused("a block hash of odd length")
    return batch


def first_salt(event: Event) -> str | None:
    """The salt of a chain's first block; None for an unsalted one and for what follows. Secret: to be dropped at once.

    Beside the adapter's name it is the only text among the keys of a first block of text alone.
    """
    if event.parent_block_hash is not None:
        return None
    try:
        keys = _keys_decoder.decode(event.extra_keys)
        first = (_first_keys_decoder.decode(keys[0]) if keys else None) or []
    except (msgspec.DecodeError, RecursionError):
        return None
    salts = [key for key in first if isinstance(key, str) and key != event.lora_name]
    return salts[-1] if salts else None

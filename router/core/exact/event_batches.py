"""Decodes a worker's event batches as far as the index needs them. Pure; never raises, never quotes content.

Layout: `[ts, events, data_parallel_rank]`, each event a map with `type`. Token ids are skipped by the decoder and no
object is ever made of them; `extra_keys`, which carries the salt in clear, is kept undecoded and looked at only by
`first_salts`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import msgspec

PAYLOAD_BYTES_MAX = 8 * 1024 * 1024
"""An engine step of 1M tokens is about 5 MB; steps are usually of 8,192 tokens, 40 KB."""
HASHES_MAX = 131_072
"""Block hashes of one event; more is refused."""
EVENTS_MAX = 65_536
"""Events of one batch."""
FULL_HASH_BYTES = 32
"""Workers that are told not to shorten hashes send all of sha256; its last 8 bytes are the short form."""

PREFIX_KINDS = (None, "full_attention", "mla_attention")
"""`kv_cache_spec_kind`s whose cached blocks of a chain are hit from its head on."""

_Hash = Annotated[int, msgspec.Meta(ge=0)]
_FullHash = Annotated[bytes, msgspec.Meta(min_length=FULL_HASH_BYTES, max_length=FULL_HASH_BYTES)]
_Hashes = Annotated[list[_Hash], msgspec.Meta(max_length=HASHES_MAX)]
_FullHashes = Annotated[list[_FullHash], msgspec.Meta(max_length=HASHES_MAX)]


class Stored(msgspec.Struct, tag="BlockStored", tag_field="type", gc=False):
    """Consecutive blocks of one chain entered a tier."""

    block_hashes: _Hashes
    block_size: int | None = None
    """Tokens."""
    medium: str | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class Removed(msgspec.Struct, tag="BlockRemoved", tag_field="type", gc=False):
    block_hashes: _Hashes
    medium: str | None = None
    group_idx: int | None = None


class Cleared(msgspec.Struct, tag="AllBlocksCleared", tag_field="type", gc=False):
    """The whole cache was emptied."""


Event = Stored | Removed | Cleared


class _FullStored(msgspec.Struct, tag="BlockStored", tag_field="type"):
    block_hashes: _FullHashes
    block_size: int | None = None
    medium: str | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None

    def short(self) -> Stored:
        hashes = _low_64_bits(self.block_hashes)
        return Stored(hashes, self.block_size, self.medium, self.group_idx, self.kv_cache_spec_kind)


class _FullRemoved(msgspec.Struct, tag="BlockRemoved", tag_field="type"):
    block_hashes: _FullHashes
    medium: str | None = None
    group_idx: int | None = None

    def short(self) -> Removed:
        return Removed(_low_64_bits(self.block_hashes), self.medium, self.group_idx)


class _Batch(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: Annotated[list[Event], msgspec.Meta(max_length=EVENTS_MAX)]


class _LooseBatch(msgspec.Struct, array_like=True):
    ts: float
    events: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=EVENTS_MAX)]


class _SaltedEvent(msgspec.Struct):
    type: str
    parent_block_hash: int | bytes | None = None
    lora_name: str | None = None
    extra_keys: msgspec.Raw = msgspec.Raw()


class _SaltedBatch(msgspec.Struct, array_like=True):
    ts: float
    events: Annotated[list[_SaltedEvent], msgspec.Meta(max_length=EVENTS_MAX)]


class _Kind(msgspec.Struct):
    type: str


@dataclass(slots=True)
class Decoded:
    events: list[Event] = field(default_factory=list)
    unknown: int = 0
    """Events of a kind that this version does not know."""
    refused: int = 0
    """Events out of bounds or not understood; 1 for an unreadable batch."""


_decode = msgspec.msgpack.Decoder(_Batch).decode
_decode_loose = msgspec.msgpack.Decoder(_LooseBatch).decode
_decode_event: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)
_decode_full: msgspec.msgpack.Decoder[_FullStored | _FullRemoved] = msgspec.msgpack.Decoder(_FullStored | _FullRemoved)
_decode_kind = msgspec.msgpack.Decoder(_Kind).decode
_decode_salted = msgspec.msgpack.Decoder(_SaltedBatch).decode
_decode_keys = msgspec.msgpack.Decoder(Annotated[list[msgspec.Raw], msgspec.Meta(max_length=HASHES_MAX)]).decode
_decode_first_keys = msgspec.msgpack.Decoder(list[object] | None).decode

_KNOWN_KINDS = ("BlockStored", "BlockRemoved", "AllBlocksCleared")


def decode_batch(payload: bytes) -> Decoded:
    """The batch's events in order; those that cannot be used are counted instead."""
    if len(payload) > PAYLOAD_BYTES_MAX:
        return Decoded(refused=1)
    try:
        events = _decode(payload).events
    except (msgspec.DecodeError, RecursionError):
        return _decode_each(payload)
    return Decoded(events)


def _decode_each(payload: bytes) -> Decoded:
    """The slow way, for whole hashes and for batches with something wrong inside."""
    try:
        parts = _decode_loose(payload).events
    except (msgspec.DecodeError, RecursionError):
        return Decoded(refused=1)
    decoded = Decoded()
    for part in parts:
        event = _decode_one(part)
        if event is not None:
            decoded.events.append(event)
        elif _is_unknown(part):
            decoded.unknown += 1
        else:
            decoded.refused += 1
    return decoded


def _decode_one(part: msgspec.Raw) -> Event | None:
    try:
        return _decode_event.decode(part)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        return _decode_full.decode(part).short()
    except (msgspec.DecodeError, RecursionError):
        return None


def _is_unknown(part: msgspec.Raw) -> bool:
    try:
        return _decode_kind(part).type not in _KNOWN_KINDS
    except (msgspec.DecodeError, RecursionError):
        return False


def _low_64_bits(hashes: list[bytes]) -> list[int]:
    return [int.from_bytes(block[-8:], "big") for block in hashes]


def first_salts(payload: bytes) -> list[str]:
    """Salts on the first blocks of chains stored in the batch. Secret: for evidence, to be dropped at once."""
    try:
        events = _decode_salted(payload).events
    except (msgspec.DecodeError, RecursionError):
        return []
    salts: list[str] = []
    for event in events:
        if event.type == "BlockStored" and event.parent_block_hash is None:
            salts += [key for key in _first_keys(event.extra_keys) if isinstance(key, str) and key != event.lora_name]
    return salts


def _first_keys(extra_keys: msgspec.Raw) -> list[object]:
    try:
        keys = _decode_keys(extra_keys)
        return (_decode_first_keys(keys[0]) if keys else None) or []
    except (msgspec.DecodeError, RecursionError):
        return []

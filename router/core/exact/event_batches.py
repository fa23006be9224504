"""Decodes a worker's event batches as far as the index needs them. Pure; never raises, never quotes content.

Layout: `[ts, events, data_parallel_rank]`, each event a map with `type`. Token ids are cut out before decoding
(`_without_token_ids`) or skipped by the decoder, and no object is ever made of them; `extra_keys`, which carries the
salt in clear, is kept undecoded and looked at only by `first_salts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

PAYLOAD_BYTES_MAX = 8 * 1024 * 1024
"""An engine step of 1M tokens is about 5 MB; steps are usually of 8,192 tokens, 40 KB."""
HASHES_MAX = 131_072
"""Block hashes of one event; more is refused."""
EVENTS_MAX = 65_536
"""Events of one batch."""
EVENTS_AT_ONCE = 4096
"""A batch of more is only cut into its events, which are decoded in portions: 65,536 at once take 20 ms."""
FULL_HASH_BYTES = 32
"""Workers that are told not to shorten hashes send all of sha256; its last 8 bytes are the short form."""

TOKENS_CUT_MIN = 64
"""Token ids of one event from which cutting them out is faster than stepping over them."""
_TOKEN_IDS = b"\xa9token_ids"
_BEHIND_TOKEN_IDS = b"\xaablock_size"
"""Keys as they are encoded; workers write them in this order, and what does not look like that is decoded whole."""
_ARRAY_HEADS = {0xDC: 2, 0xDD: 4}
"""First byte of a long array → bytes of its length."""
_TOKEN_BYTES_MAX = 5
_FLOAT, _EVENTS_AT = 0xCB, 10
"""Head of the batch's time, which takes nine bytes behind the head of the batch."""

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
    parts: list[msgspec.Raw] = field(default_factory=list)
    """Instead of all that: the events of a large batch, for `decode_parts`."""


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
    if _events(payload) > EVENTS_AT_ONCE:
        try:
            return Decoded(parts=_decode_loose(payload).events)
        except (msgspec.DecodeError, RecursionError):
            return Decoded(refused=1)
    shorter = _without_token_ids(payload)
    if shorter is not None:
        try:
            return Decoded(_decode(shorter).events)
        except (msgspec.DecodeError, RecursionError):
            pass
    try:
        return Decoded(_decode(payload).events)
    except (msgspec.DecodeError, RecursionError):
        return _decode_each(payload)


def _events(payload: bytes) -> int:
    """The length of a long array of events, from its head; 0 for a short one or another layout."""
    width = _ARRAY_HEADS.get(payload[_EVENTS_AT], 0) if len(payload) > _EVENTS_AT and payload[1] == _FLOAT else 0
    return int.from_bytes(payload[_EVENTS_AT + 1 : _EVENTS_AT + 1 + width])


def _without_token_ids(payload: bytes) -> bytes | None:
    """The batch with its long arrays of token ids emptied; None where none is found at once.

    Finding the next key is six times as fast as stepping over the ids. An id may hold the key's first byte and further
    ids its letters. Then what follows does not decode, for no id begins as the next key must, and the batch is decoded
    whole. A key cannot hold an array of this many ids within so many bytes.
    """
    parts: list[bytes] = []
    kept, at = 0, payload.find(_TOKEN_IDS)
    while at >= 0:
        begin = at + len(_TOKEN_IDS)
        width = _ARRAY_HEADS.get(payload[begin], 0) if begin < len(payload) else 0
        head = begin + 1 + width
        count = int.from_bytes(payload[begin + 1 : head])
        if count < TOKENS_CUT_MIN:
            return None
        end = payload.find(_BEHIND_TOKEN_IDS, head + count, head + _TOKEN_BYTES_MAX * count + len(_BEHIND_TOKEN_IDS))
        if end < 0:
            return None
        parts += payload[kept:begin], b"\x90"
        kept, at = end, payload.find(_TOKEN_IDS, end)
    return b"".join((*parts, payload[kept:])) if parts else None


def _decode_each(payload: bytes) -> Decoded:
    """The slow way, for whole hashes and for batches with something wrong inside."""
    try:
        parts = _decode_loose(payload).events
    except (msgspec.DecodeError, RecursionError):
        return Decoded(refused=1)
    return decode_parts(parts)


def decode_parts(parts: Sequence[msgspec.Raw]) -> Decoded:
    """Some of a batch's events."""
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

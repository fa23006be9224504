"""A signed revocation: one thing taken away, sent to each router's admin port ahead of the snapshot that holds it.

It carries the epoch that was given to it in the transaction of the change. A snapshot of that epoch or a later one
contains it, so a router keeps it only until such a snapshot is in force. The answer is signed too: an acknowledgement
counts only from a holder of the fleet key.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from router.contract.secrets import FleetKey

REVOCATIONS_BYTES_MAX = 64 * 1024
"""About 300 revocations of some 200 bytes in one message; routers learn of more from the snapshot."""

REVOCATIONS_PATH = "/revocations"
"""Of the router's admin port, POST."""

RevocationKind = Literal["key", "namespace", "tenant", "model"]


class Revocation(msgspec.Struct, frozen=True):
    epoch: int
    kind: RevocationKind
    subject: str
    """Key id, `acme/support`, `acme`, or `<pool>:<model name>`."""
    retired: int = 0
    """Of a model: the generation that ends; later ones are untouched by it."""
    signature: str = ""


class RevocationAck(msgspec.Struct, frozen=True):
    router: str
    boot: str
    epochs: tuple[int, ...]
    """Those of the message that are in force and kept on the router's disk."""
    signature: str = ""


class RevocationError(ValueError):
    """Why a message was refused; fit for an operator, holds no secret."""


_revocations_decoder = msgspec.json.Decoder(tuple[Revocation, ...])
_ack_decoder = msgspec.json.Decoder(RevocationAck)


def sign_revocation(
    fleet_key: FleetKey, *, epoch: int, kind: RevocationKind, subject: str, retired: int = 0
) -> Revocation:
    unsigned = Revocation(epoch, kind, subject, retired)
    return msgspec.structs.replace(unsigned, signature=_signature(fleet_key, unsigned))


def encode_revocations(revocations: Iterable[Revocation]) -> bytes:
    return msgspec.json.encode(list(revocations))


def open_revocations(data: bytes, fleet_key: FleetKey) -> tuple[Revocation, ...]:
    """All of a message or none of it. Raises RevocationError when it is unreadable or any signature does not fit."""
    if len(data) > REVOCATIONS_BYTES_MAX:
        raise RevocationError(f"a message of revocations has at most {REVOCATIONS_BYTES_MAX} bytes")
    try:
        revocations = _revocations_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise RevocationError("not a list of revocations") from None
    if not all(is_genuine(revocation, fleet_key) for revocation in revocations):
        raise RevocationError("a revocation's signature does not fit: altered, or signed with another fleet key")
    return revocations


def is_genuine(revocation: Revocation, fleet_key: FleetKey) -> bool:
    return hmac.compare_digest(_signature(fleet_key, revocation).encode(), revocation.signature.encode())


def sign_ack(fleet_key: FleetKey, *, router: str, boot: str, epochs: Sequence[int]) -> RevocationAck:
    unsigned = RevocationAck(router, boot, tuple(epochs))
    return msgspec.structs.replace(unsigned, signature=_ack_signature(fleet_key, unsigned))


def encode_ack(ack: RevocationAck) -> bytes:
    return msgspec.json.encode(ack)


def open_ack(data: bytes, fleet_key: FleetKey) -> RevocationAck:
    """Raises RevocationError."""
    try:
        ack = _ack_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise RevocationError("not an acknowledgement") from None
    if not hmac.compare_digest(_ack_signature(fleet_key, ack).encode(), ack.signature.encode()):
        raise RevocationError("the acknowledgement's signature does not fit")
    return ack


def _signature(fleet_key: FleetKey, revocation: Revocation) -> str:
    parts = (str(revocation.epoch), revocation.kind, revocation.subject, str(revocation.retired))
    return fleet_key.mac("revocation/v1", *parts).hex()


def _ack_signature(fleet_key: FleetKey, ack: RevocationAck) -> str:
    return fleet_key.mac("revocation-ack/v1", ack.router, ack.boot, *map(str, ack.epochs)).hex()

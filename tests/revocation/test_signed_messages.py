"""Revocations on the wire: framed, signed with the fleet key, and acknowledged under a signature of their own."""

from __future__ import annotations

import hashlib
import hmac

import msgspec
import pytest

from router.contract.revocation import (
    REVOCATIONS_BYTES_MAX,
    RevocationError,
    encode_ack,
    encode_revocations,
    open_ack,
    open_revocations,
    sign_ack,
    sign_revocation,
)
from router.contract.secrets import FleetKey
from tests.router.conftest import FLEET, FLEET_HEX

OTHER = FleetKey(b"x" * 32)


def _mac_by_hand(*parts: str) -> str:
    message = b"".join(len(part.encode()).to_bytes(4, "big") + part.encode() for part in parts)
    return hmac.new(bytes.fromhex(FLEET_HEX), message, hashlib.sha256).hexdigest()


def test_it_signs_the_framed_fields() -> None:
    made = sign_revocation(FLEET, epoch=7, kind="model", subject="pool:org/m", retired=3)
    assert made.signature == _mac_by_hand("revocation/v1", "7", "model", "pool:org/m", "3")
    ack = sign_ack(FLEET, router="r1", boot="b", epochs=[7, 9])
    assert ack.signature == _mac_by_hand("revocation-ack/v1", "r1", "b", "7", "9")


def test_it_opens_what_it_signed() -> None:
    made = [sign_revocation(FLEET, epoch=epoch, kind="tenant", subject="acme") for epoch in (1, 2)]
    assert open_revocations(encode_revocations(made), FLEET) == tuple(made)
    ack = sign_ack(FLEET, router="r1", boot="b", epochs=[1])
    assert open_ack(encode_ack(ack), FLEET) == ack


@pytest.mark.parametrize(
    "change", [{"epoch": 8}, {"kind": "tenant"}, {"subject": "other"}, {"retired": 1}, {"signature": ""}]
)
def test_it_refuses_an_altered_revocation_and_all_that_came_with_it(change: dict) -> None:
    good = sign_revocation(FLEET, epoch=6, kind="key", subject="k")
    altered = msgspec.structs.replace(sign_revocation(FLEET, epoch=7, kind="key", subject="k"), **change)
    with pytest.raises(RevocationError, match="signature"):
        open_revocations(encode_revocations([good, altered]), FLEET)


def test_it_refuses_another_fleets_words() -> None:
    with pytest.raises(RevocationError):
        open_revocations(encode_revocations([sign_revocation(OTHER, epoch=1, kind="key", subject="k")]), FLEET)
    with pytest.raises(RevocationError):
        open_ack(encode_ack(sign_ack(OTHER, router="r1", boot="b", epochs=[1])), FLEET)


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[", b"[{}]", b"\xff", b"[" * 1000, b'[{"epoch":1,"kind":"other","subject":"a"}]',
             b" " * (REVOCATIONS_BYTES_MAX + 1)]
)  # fmt: skip
def test_it_refuses_nonsense(data: bytes) -> None:
    with pytest.raises(RevocationError):
        open_revocations(data, FLEET)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff"])
def test_it_refuses_a_nonsensical_acknowledgement(data: bytes) -> None:
    with pytest.raises(RevocationError):
        open_ack(data, FLEET)

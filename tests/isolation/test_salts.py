"""Salts (S1): fixed vectors, made a second time from the words of the definition alone."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import struct

import pytest

from router.contract.secrets import FleetKey, framed

KEY = bytes(range(32))
LEGAL = re.compile(r"[A-Za-z0-9_-]{43}")
"""vLLM refuses salts that hold any of @ / \\ NUL or are longer than 128 characters."""

VECTORS = [
    ("kvsalt/v1", ("acme", "support", "00112233445566778899aabbccddeeff")),
    ("kvsalt/v1", ("acme", "support", "00112233445566778899aabbccddeefe")),
    ("kvsalt/v1", ("org_1", "2345", "n")),
    ("kvsalt/v1", ("org_12345", "", "n")),
    ("kvsalt/v1", ("größe", "名前空間", "n")),
    ("kvsalt-shared/v1", ("project:acme/search", "n")),
    ("kvsalt-shared/v1", ("group:alliance", "n")),
]
FIXED = {
    ("acme", "support", "00112233445566778899aabbccddeeff"): "C97rXeKyKPNZFkDPmLpobqLc8l-Krngv2g3yTS1AIGg",
    ("project:acme/search", "n"): "eZEUfl5cNEwJRFUJ_95iazkjCsnLK6UqhWUIs11QuYo",
    ("group:alliance", "n"): "6ud4N7fo0BqqV2Hpzng7dKu6gxZSyOYradMR15HSeDA",
}
"""Written down once: a change of any of them makes every cache in the field cold."""


def second(purpose: str, *parts: str) -> str:
    """Length-prefixed framing (4 bytes, big-endian), HMAC-SHA256, base64url without padding."""
    data = b"".join(struct.pack(">I", len(part.encode())) + part.encode() for part in (purpose, *parts))
    return base64.b64encode(hmac.new(KEY, data, hashlib.sha256).digest(), b"-_").decode().strip("=")


def ours(purpose: str, *parts: str) -> str:
    key = FleetKey(KEY)
    return key.cache_salt(*parts) if purpose == "kvsalt/v1" else key.domain_salt(*parts)


@pytest.mark.parametrize(("purpose", "parts"), VECTORS)
def test_a_second_implementation_gives_the_same_salt(purpose: str, parts: tuple[str, ...]) -> None:
    assert ours(purpose, *parts) == second(purpose, *parts)
    assert LEGAL.fullmatch(ours(purpose, *parts))


@pytest.mark.parametrize("parts", FIXED)
def test_salts_never_change(parts: tuple[str, ...]) -> None:
    purpose = "kvsalt/v1" if len(parts) == 3 else "kvsalt-shared/v1"
    assert ours(purpose, *parts) == FIXED[parts]


def test_no_two_of_them_are_equal() -> None:
    assert len({ours(purpose, *parts) for purpose, parts in VECTORS}) == len(VECTORS)
    assert framed("a", "bc") != framed("ab", "c")

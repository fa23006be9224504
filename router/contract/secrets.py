"""Secrets derived from the fleet key: cache salts, API-key hashes, snapshot signatures, router tokens.

Nothing derived here is ever stored in clear, logged or sent to a client. The fleet key is held by the
control plane and the routers; snapshots carry only nonces and keyed hashes.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets as _random

from router.contract.ids import KeyId

FLEET_KEY_BYTES_MIN = 32
"""Below the output size of SHA-256 the key, not the hash, would be the weakest part."""

API_KEY_PATTERN = re.compile(r"tm_([0-9a-z]{12})_([A-Za-z0-9_-]{43})")
"""43 base64url characters are 256 bits."""


class FleetKeyError(ValueError):
    """The fleet key is missing, too short or not hexadecimal."""


def framed(*parts: str | bytes) -> bytes:
    """Each part behind its length (4 bytes, big-endian), so ("a","bc") and ("ab","c") never meet."""
    out = bytearray()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        out += len(data).to_bytes(4, "big") + data
    return bytes(out)


class FleetKey:
    """The installation's one root secret; its `repr` shows nothing."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        if len(key) < FLEET_KEY_BYTES_MIN:
            raise FleetKeyError(f"the fleet key has {len(key)} bytes; at least {FLEET_KEY_BYTES_MIN} are needed")
        self._key = key

    def __repr__(self) -> str:
        return "FleetKey(…)"

    @classmethod
    def from_hex(cls, text: str) -> FleetKey:
        try:
            return cls(bytes.fromhex(text.strip()))
        except FleetKeyError:
            raise
        except ValueError:
            raise FleetKeyError("the fleet key must be hexadecimal") from None

    @staticmethod
    def generate_hex() -> str:
        return _random.token_hex(FLEET_KEY_BYTES_MIN)

    def mac(self, purpose: str, *parts: str | bytes) -> bytes:
        """HMAC-SHA256 over the framed purpose and parts: 32 bytes. One purpose never collides with another."""
        return hmac.digest(self._key, framed(purpose, *parts), hashlib.sha256)

    def cache_salt(self, tenant: str, namespace: str, generation_nonce: str) -> str:
        """The `cache_salt` sent to workers for one generation of a namespace: 43 base64url characters (S1).

        `namespace` is the slug inside the tenant, not the `tenant/slug` id.
        """
        return _b64(self.mac("kvsalt/v1", tenant, namespace, generation_nonce))

    def domain_salt(self, domain: str, nonce: str) -> str:
        """The `cache_salt` of a shared cache domain, of the same form; it never equals a namespace's (S1)."""
        return _b64(self.mac("kvsalt-shared/v1", domain, nonce))

    def api_key_hash(self, key_id: str, secret: str) -> str:
        """What is stored of an API key (S13): hexadecimal HMAC, useless without the fleet key."""
        return self.mac("apikey/v1", key_id, secret).hex()

    def router_token(self) -> str:
        """Bearer token with which routers fetch snapshots from the control plane."""
        return _b64(self.mac("router-token/v1"))

    def subkey(self, purpose: str) -> bytes:
        """A 32-byte key for another keyed primitive, for example the prefix hashes of a router."""
        return self.mac("subkey/v1", purpose)


def new_api_key() -> tuple[KeyId, str, str]:
    """A fresh key as (key id, secret, full text `tm_<id>_<secret>`)."""
    alphabet = "0123456789abcdefghijklmnopqrstuvwxyz"
    key_id = "".join(_random.choice(alphabet) for _ in range(12))
    secret = _b64(_random.token_bytes(32))
    return KeyId(key_id), secret, f"tm_{key_id}_{secret}"


def split_api_key(text: str) -> tuple[KeyId, str] | None:
    """(key id, secret) of a well-formed key, else None."""
    found = API_KEY_PATTERN.fullmatch(text)
    return (KeyId(found[1]), found[2]) if found else None


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

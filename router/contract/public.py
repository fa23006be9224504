"""Public texts (S3.11): static text of prompt templates that two persons allowed every tenant to share a cache for.

A worker's salt names a whole request, so only a request that is nothing but such a text may carry the shared salt: what
a user adds, a session or a tool's result never does. Snapshots hold keyed digests, no text.
"""

from __future__ import annotations

import hashlib

from router.contract.secrets import FleetKey, framed

DOMAIN = "public"
"""Id of the cache domain of public texts."""
ROLES = ("system", "user")
"""Of the one message that such a request consists of."""


def public_key(fleet_key: FleetKey) -> bytes:
    return fleet_key.subkey("public-text/v1")


def public_digest(key: bytes, *, role: str, text: bytes) -> str:
    """32 hexadecimal digits, of `public_key`. O(bytes)."""
    return hashlib.blake2b(framed(role, text), key=key, digest_size=16).hexdigest()

"""A router's sign of life and acknowledgement: which snapshot it serves.

It is the JSON body of the snapshot poll (`POST /api/v1/snapshots/poll`: 204 when the router is up to date, else 200
with the encoded SignedSnapshot) and is kept in ROUTERS_HASH too, so that "published v12 · 1 of 1 routers on v12"
needs only one of the two ways to work.
"""

from __future__ import annotations

import msgspec


class RouterHello(msgspec.Struct, frozen=True, omit_defaults=True):
    router: str
    boot: str
    at: float
    snapshot_version: int
    """0 while the router has none."""
    epoch: int
    """Every revocation up to it is in force, and would be after a restart: this acknowledges them."""
    admin_url: str = ""
    inflight: int = 0
    started_at: float = 0.0
    last_error: str = ""
    """Why the newest snapshot was refused, or what is in force and could not be kept on disk."""
    digest: str = ""
    """Of the snapshot it serves, so that two routers on one version with different contents are seen."""


encode_hello = msgspec.json.Encoder().encode
decode_hello = msgspec.json.Decoder(RouterHello).decode

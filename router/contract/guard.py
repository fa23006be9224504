"""Proofs by which a worker's guard tells the fleet's own requests from everybody else's (S26).

A proof says: whoever holds this pool's guard key sent this salt, at this time, knowing this epoch. It travels in
`PROOF_HEADER` as `1.<epoch>.<issued>.<mac>`; the salt itself is in the body and nowhere else:

    guard key   = HMAC-SHA256(fleet key, framed("guard-key/v1", pool))                       32 bytes, one a pool
    mac         = base64url(HMAC-SHA256(guard key, framed("guard/v1", epoch, issued, salt)))  43 characters

`docker/guard/tidemark_guard.py` checks them inside the worker. A worker holds its pool's guard key only: with it, it
could vouch for requests to its own pool, and for nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import hmac

from router.contract.ids import PoolId
from router.contract.secrets import FleetKey, framed

PROOF_HEADER = "x-tidemark-proof"
PROOF_PERIOD_S = 30
"""Proofs are issued for the beginning of such a period, so that one serves every request of a salt in it. The guard
takes them for `TIDEMARK_GUARD_AGE_S` (120 s): four periods, for clocks that differ."""
GUARD_ERROR_TYPE = "tidemark_guard"
"""`error.type` of the guard's refusals."""
NO_SALT = ""
"""Of requests that no cache is asked for: `/tokenize`."""


def guard_key(fleet_key: FleetKey, pool: PoolId) -> bytes:
    return fleet_key.mac("guard-key/v1", pool)


def proof(key: bytes, *, salt: str, epoch: int, now: float) -> str:
    """The value of `PROOF_HEADER`. `now` is in Unix seconds."""
    issued = str(int(now) // PROOF_PERIOD_S * PROOF_PERIOD_S)
    mac = hmac.digest(key, framed("guard/v1", str(epoch), issued, salt), hashlib.sha256)
    return f"1.{epoch}.{issued}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"

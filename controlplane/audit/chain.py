"""The arithmetic of the audit chain: h_n = SHA256(h_{n-1} ‖ canonical JSON of entry n) (S24). No database."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import Protocol

GENESIS_HASH = "0" * 64
"""`previous_hash` of the first entry."""


class Chained(Protocol):
    """The fields an entry is hashed over."""

    id: int
    at: datetime
    actor: str
    action: str
    object_type: str
    object_id: str
    before: object
    after: object
    reason: str
    request_id: str
    affects_routing: bool


def canonical(entry: Chained) -> bytes:
    """Equal content gives equal bytes on every database: sorted keys, no spaces, UTC to the microsecond."""
    fields = {
        "id": entry.id,
        "at": entry.at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "actor": entry.actor,
        "action": entry.action,
        "object_type": entry.object_type,
        "object_id": entry.object_id,
        "before": _plain(entry.before),
        "after": _plain(entry.after),
        "reason": entry.reason,
        "request_id": entry.request_id,
        "affects_routing": entry.affects_routing,
    }
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def _plain(value: object) -> object:
    """PostgreSQL's jsonb gives 1e16 back as an integer: whole floats are written as integers everywhere."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def hash_of(previous_hash: str, entry: Chained) -> str:
    """Hexadecimal SHA-256. Raises ValueError when a value is NaN or infinite, TypeError when it is not JSON."""
    return hashlib.sha256(previous_hash.encode("ascii") + canonical(entry)).hexdigest()

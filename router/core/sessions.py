"""Session affinity (S2.1): which worker served a session last.

Keys are keyed hashes of (namespace, session id), so no user text is kept (C61) and equal ids of two namespaces never
meet. Bounded by count, least recently used first, and by age. O(1) each.
"""

from __future__ import annotations

import hashlib

from router.contract.ids import NamespaceId, WorkerId
from router.contract.secrets import FleetKey, framed


class Sessions:
    def __init__(self, *, fleet_key: FleetKey, sessions_max: int, ttl_s: float) -> None:
        self._key = fleet_key.subkey("session/v1")
        self._sessions_max = sessions_max
        self._ttl_s = ttl_s
        self._workers: dict[int, tuple[WorkerId, float]] = {}
        """In order of last use."""

    def __len__(self) -> int:
        return len(self._workers)

    def key(self, namespace: NamespaceId, session: str) -> int:
        """A 64-bit keyed hash, equal on every router of the fleet."""
        message = framed(namespace, session.encode("utf-8", "surrogatepass"))
        return int.from_bytes(hashlib.blake2b(message, key=self._key, digest_size=8).digest())

    def worker(self, key: int, *, now: float) -> WorkerId | None:
        entry = self._workers.get(key)
        if entry is None:
            return None
        worker, at = entry
        if now - at > self._ttl_s:
            del self._workers[key]
            return None
        return worker

    def remember(self, key: int, worker: WorkerId, *, now: float) -> None:
        self._workers.pop(key, None)
        self._workers[key] = (worker, now)
        if len(self._workers) > self._sessions_max:
            del self._workers[next(iter(self._workers))]

    def forget_worker(self, worker: WorkerId) -> None:
        """O(sessions); called only when a worker lost its cache or left."""
        self._workers = {key: entry for key, entry in self._workers.items() if entry[0] != worker}

"""Proofs for guarded workers (S26): one for each pool, salt and period, so that a request costs a lookup.

Memory: at most `HEADERS_MAX` headers; they are made anew in each period and after each snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from router.contract.guard import NO_SALT, PROOF_HEADER, PROOF_PERIOD_S, guard_key, proof
from router.contract.ids import PoolId
from router.contract.secrets import FleetKey
from router.contract.snapshot import PoolPolicy

HEADERS_MAX: Final = 20_000
"""Namespaces × guarded pools in use; about 200 bytes each."""


class Proofs:
    def __init__(self, fleet_key: FleetKey) -> None:
        self._fleet_key = fleet_key
        self._keys: dict[PoolId, bytes] = {}
        self._epoch = 0
        self._period = -1
        self._headers: dict[tuple[PoolId, str], bytes] = {}
        self.guarded: frozenset[PoolId] = frozenset()
        """Pools whose workers ask for proofs: of others nothing is asked here."""

    def apply(self, pools: Mapping[PoolId, PoolPolicy], *, epoch: int) -> None:
        """Take a snapshot's pools and its epoch, which each proof names."""
        self._keys = {pool: guard_key(self._fleet_key, pool) for pool, policy in pools.items() if policy.guarded}
        self.guarded = frozenset(self._keys)
        self._epoch = epoch
        self._headers.clear()

    def header(self, pool: PoolId, salt: str, *, now: float) -> bytes:
        """The header line of a request to a guarded pool. `now` is in Unix seconds."""
        period = int(now) // PROOF_PERIOD_S
        if period != self._period or len(self._headers) >= HEADERS_MAX:
            self._headers.clear()
            self._period = period
        line = self._headers.get((pool, salt))
        if line is None:
            line = f"{PROOF_HEADER}: {self._proof(pool, salt, now)}\r\n".encode()
            self._headers[pool, salt] = line
        return line

    def unsalted(self, pool: PoolId, *, now: float) -> dict[str, str]:
        """Headers of the router's own questions to a worker, `/tokenize`; none where the pool has no guard."""
        return {PROOF_HEADER: self._proof(pool, NO_SALT, now)} if pool in self.guarded else {}

    def _proof(self, pool: PoolId, salt: str, now: float) -> str:
        return proof(self._keys[pool], salt=salt, epoch=self._epoch, now=now)

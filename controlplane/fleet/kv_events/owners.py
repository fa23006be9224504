"""Whose a cached block is: the name that a chain's salt belongs to. No salt leaves this process.

Names come from the app that knows salts, which registers here when it is loaded, since `fleet` may not import it. Of a
pool's namespaces NAMED_MAX are told apart at a time, so that who evicted whom stays a small table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from router.contract.telemetry import OTHER_OWNER, UNKNOWN_OWNER

NAMED_MAX = 30
IDLE_S = 3600.0
"""A name of which nothing was stored for so long makes room."""

SaltNames = Mapping[str, str]
"""Salt → namespace, or the cache domain that several share. Secret."""

_sources: list[Callable[[], SaltNames]] = []


def register_salt_names(source: Callable[[], SaltNames]) -> None:
    """Called every half minute; it may use the database."""
    if source not in _sources:
        _sources.append(source)


def read_salt_names() -> dict[str, str]:
    return {salt: name for source in _sources for salt, name in source().items()}


class Owners:
    """Of one pool. Bounded by NAMED_MAX names beside what is read."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        """`clock`: seconds that never go back."""
        self.names: SaltNames = {}
        self._clock = clock
        self._stored_at: dict[str, float] = {}
        """Name → when something of it was stored last."""

    def __repr__(self) -> str:
        return "Owners(…)"

    def owner_of(self, salt: str) -> str:
        name = self.names.get(salt)
        if name is None:
            return UNKNOWN_OWNER
        now = self._clock()
        if name not in self._stored_at and len(self._stored_at) >= NAMED_MAX and not self._make_room(now):
            return OTHER_OWNER
        self._stored_at[name] = now
        return name

    def _make_room(self, now: float) -> bool:
        name = min(self._stored_at, key=lambda each: self._stored_at[each])
        if now - self._stored_at[name] < IDLE_S:
            return False
        del self._stored_at[name]
        return True

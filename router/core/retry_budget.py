"""How many requests may be asked of a second worker: a share of the traffic, so that no load is doubled (A3)."""

from __future__ import annotations

from typing import Final

RETRY_RESERVE: Final = 10.0
"""Retries a router may spend before any request has earned one."""


class RetryBudget:
    """A token for every 1/share requests: retries stay below that share of the traffic."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._tokens = RETRY_RESERVE if share > 0 else 0.0

    @property
    def left(self) -> bool:
        return self._tokens >= 1

    def earn(self) -> None:
        self._tokens = min(self._tokens + self._share, RETRY_RESERVE)

    def take(self) -> bool:
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

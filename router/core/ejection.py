"""Passive ejection: a worker whose answers fail in a row gets no requests for a while, longer each time.

    ok ──5 failures in a row──▶ ejected 30 s × n ──time over──▶ on probation ──1 failure──▶ ejected, n + 1
     ▲                                                               └──────1 success──────▶ ok

Only connect failures and 5xx answers are failures; a 4xx says nothing about the worker (C57). O(1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FAILURES_IN_A_ROW: Final = 5
EJECTION_S: Final = 30.0
EJECTION_S_MAX: Final = 300.0
FORGIVEN_AFTER_S: Final = 300.0
"""Success this long after an ejection ended starts the count of ejections anew."""
PANIC_SHARE: Final = 0.5
"""Where more of a pool is ejected, ejection is ignored: the fault is then hardly each worker's own (A9)."""


@dataclass(slots=True)
class Ejection:
    failures: int = 0
    ejections: int = 0
    until: float = 0.0

    def ejected(self, now: float) -> bool:
        return now < self.until

    def failed(self, *, now: float) -> None:
        if self.ejected(now):
            return
        self.failures += 1
        if self.failures >= FAILURES_IN_A_ROW:
            self.ejections += 1
            self.until = now + min(EJECTION_S * self.ejections, EJECTION_S_MAX)
            self.failures = FAILURES_IN_A_ROW - 1

    def succeeded(self, *, now: float) -> None:
        """An answer of a request sent before the ejection does not end it, but it starts the row anew."""
        self.failures = 0
        if self.ejections and now >= self.until + FORGIVEN_AFTER_S:
            self.ejections = 0

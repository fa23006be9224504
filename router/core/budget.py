"""Fair share of prefill (S11): a token bucket of uncached prompt tokens for each tenant that has a limit.

What the cache saves is free, so a tenant that keeps its prompts in order gets more done. A request is let in while the
bucket is above zero and may overdraw it: its length says nothing about the tenant's right to be served. It is charged
what is predicted, and the difference when the worker has said what was cached. Off unless the tenant has a rate. O(1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from router.contract.ids import TenantId
from router.contract.snapshot import TenantGrant
from router.core.model import OverBudget

BURST_S: Final = 10.0
"""Seconds of its rate that a tenant may save up where its policy names no burst."""
RETRY_AFTER_S_MAX: Final = 60


@dataclass(slots=True)
class _Bucket:
    tokens_per_s: float
    burst_tokens: float
    level: float
    at: float

    def fill(self, now: float) -> None:
        if now > self.at:
            self.level = min(self.burst_tokens, self.level + self.tokens_per_s * (now - self.at))
            self.at = now


class TenantBudgets:
    """Bounded by the snapshot's tenants with a limit."""

    def __init__(self) -> None:
        self._buckets: dict[TenantId, _Bucket] = {}
        self.any = False
        """Whether any tenant has a limit: spares the calls where none has."""

    def apply(self, tenants: Mapping[TenantId, TenantGrant], *, now: float) -> None:
        """Take the limits in force; a bucket that stays keeps its level."""
        before, self._buckets = self._buckets, {}
        for tenant, grant in tenants.items():
            rate = grant.prefill_tokens_per_s
            if rate is None or rate <= 0:
                continue
            burst = float(grant.prefill_burst_tokens or rate * BURST_S)
            known = before.get(tenant)
            level = burst if known is None else min(known.level, burst)
            self._buckets[tenant] = _Bucket(rate, burst, level, now if known is None else known.at)
        self.any = bool(self._buckets)

    def admit(self, tenant: TenantId, *, now: float) -> None:
        """Raises OverBudget when the tenant has used up its share."""
        bucket = self._buckets.get(tenant)
        if bucket is None:
            return
        bucket.fill(now)
        if bucket.level <= 0:
            wait_s = math.ceil((1.0 - bucket.level) / bucket.tokens_per_s)
            raise OverBudget(min(max(wait_s, 1), RETRY_AFTER_S_MAX))

    def charge(self, tenant: TenantId, tokens: float, *, now: float) -> None:
        """Uncached prompt tokens that the tenant causes; negative gives back what was charged too much."""
        bucket = self._buckets.get(tenant)
        if bucket is not None:
            bucket.fill(now)
            bucket.level = min(bucket.burst_tokens, bucket.level - tokens)

"""How far the reuse of one prompt reached, and the cohort of its time to first token. Pure.

Each step is at least the one behind it, so that the differences are losses, never negative, and add up:

    prompt ≥ repeated ≥ best ≥ expected ≥ delivered
          │          │      │          └ stale index: expected of the chosen worker, not delivered
          │          │      └ routing: another worker held more
          │          └ eviction: came before, no worker is believed to hold it any more
          └ workload: never came before

The router's figures are estimates in text; they are put in proportion to the prompt tokens that the worker counted.
"""

from __future__ import annotations

from router.contract.cohorts import HIT, MISS, PARTIAL, UNKNOWN, cohort_key
from router.contract.histogram import Buckets, bucket_of, observe
from router.contract.telemetry import BY_CHOICE, RequestRow
from router.core.model import Decision


class Reach:
    """Sums of one row under way. A class of its own: compiled, adding to it costs a tenth of adding to the row."""

    __slots__ = ("best", "cohorts", "expected", "loss", "repeated", "sizes", "unjudged")

    def __init__(self) -> None:
        self.repeated = 0
        self.best = 0
        self.expected = 0
        self.unjudged = 0
        self.loss: dict[str, int] = {}
        self.sizes: Buckets = {}
        self.cohorts: dict[int, int] = {}

    def count(self, decision: Decision | None, *, prompt_tokens: int, cached_tokens: int) -> None:
        """A request whose cached tokens are known."""
        observe(self.sizes, cached_tokens)
        delivered = min(cached_tokens, prompt_tokens)
        if decision is None or decision.repeated_tokens < 0 or decision.predicted_prompt_tokens <= 0:
            self.repeated += delivered
            self.best += delivered
            self.expected += delivered
            self.unjudged += prompt_tokens - delivered
            return
        whole = decision.predicted_prompt_tokens
        expected = min(max(decision.predicted_hit_tokens * prompt_tokens // whole, delivered), prompt_tokens)
        best = min(max(decision.best_hit_tokens * prompt_tokens // whole, expected), prompt_tokens)
        self.repeated += min(max(decision.repeated_tokens * prompt_tokens // whole, best), prompt_tokens)
        self.best += best
        self.expected += expected
        if best > expected:
            why = decision.spill or BY_CHOICE
            self.loss[why] = self.loss.get(why, 0) + best - expected

    def count_ttft(
        self, row: RequestRow, *, ttft_ms: float, prompt_tokens: int | None, cached_tokens: int | None, beside: int
    ) -> None:
        """`beside`: requests that were under way on the worker at the choice."""
        if cached_tokens is None or not prompt_tokens:
            cache, buckets = UNKNOWN, row.ttft_unknown
        elif cached_tokens == 0:
            cache, buckets = MISS, row.ttft_miss
        elif cached_tokens * 2 >= prompt_tokens:
            cache, buckets = HIT, row.ttft_hit
        else:
            cache, buckets = PARTIAL, row.ttft_partial
        bucket = bucket_of(ttft_ms)
        buckets[bucket] = buckets.get(bucket, 0) + 1
        if prompt_tokens:
            key = cohort_key(prompt_tokens=prompt_tokens, beside=beside, cache=cache, bucket=bucket)
            self.cohorts[key] = self.cohorts.get(key, 0) + 1

    def put(self, row: RequestRow) -> None:
        """Into the row, once it is complete."""
        row.repeated_tokens = self.repeated
        row.best_hit_tokens = self.best
        row.expected_hit_tokens = self.expected
        row.unjudged_tokens = self.unjudged
        row.routing_loss = self.loss
        row.hit_size = self.sizes
        row.cohorts = self.cohorts

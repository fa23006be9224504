"""Counters since the start, for `/metrics`: fed once a second from the rows, so requests pay nothing for them."""

from __future__ import annotations

from collections.abc import Iterable

from router.contract.histogram import Buckets, merge
from router.contract.telemetry import RequestRow

SERIES_MAX = 500
"""Pairs of model and tenant with series of their own; further ones are summed under `other` (S22)."""
OTHER = ("other", "other")


class Totals:
    def __init__(self) -> None:
        self.requests: dict[tuple[str, str, str], int] = {}
        """(model, tenant, outcome) → count."""
        self.query_tokens: dict[tuple[str, str], int] = {}
        self.hit_tokens: dict[tuple[str, str], int] = {}
        self.predicted_hit_tokens: dict[tuple[str, str], int] = {}
        self.ttft_ms: dict[str, Buckets] = {"hit": {}, "partial": {}, "miss": {}, "unknown": {}}
        self.decision_us: Buckets = {}
        self.spills: dict[str, int] = {}
        self.retries = 0
        self.pulls: dict[str, int] = {"ok": 0, "fell_back": 0}
        self.pulled_tokens = 0
        self.violations = 0
        self.unknown_fields = 0
        """Request fields no endpoint documents, whatever the namespace's policy did with them."""
        self.templates_ignored = 0
        """Requests that named a template their namespace does not have."""
        self._pairs: set[tuple[str, str]] = set()

    def add(self, rows: Iterable[RequestRow]) -> None:
        for row in rows:
            pair = self._pair(row)
            self._add_outcomes(pair, row)
            _sum(self.query_tokens, pair, row.hit_prompt_tokens)
            _sum(self.hit_tokens, pair, row.hit_tokens)
            _sum(self.predicted_hit_tokens, pair, row.predicted_hit_tokens)
            for name, buckets in self.ttft_ms.items():
                merge(buckets, getattr(row, f"ttft_{name}"))
            merge(self.decision_us, row.decision_us)
            for reason, count in row.spills.items():
                self.spills[reason] = self.spills.get(reason, 0) + count
            self.retries += row.retries
            self.pulls["ok"] += row.pulls - row.pulls_failed
            self.pulls["fell_back"] += row.pulls_failed
            self.pulled_tokens += row.pulled_tokens
            self.violations += row.isolation_violations

    def _pair(self, row: RequestRow) -> tuple[str, str]:
        pair = (row.model, row.tenant)
        if pair not in self._pairs:
            if len(self._pairs) >= SERIES_MAX:
                return OTHER
            self._pairs.add(pair)
        return pair

    def _add_outcomes(self, pair: tuple[str, str], row: RequestRow) -> None:
        failed = 0
        for kind, count in row.errors.items():
            failed += count
            self.requests[(*pair, kind)] = self.requests.get((*pair, kind), 0) + count
        ok = row.requests - failed
        if ok:
            self.requests[(*pair, "ok")] = self.requests.get((*pair, "ok"), 0) + ok


def _sum(into: dict[tuple[str, str], int], pair: tuple[str, str], count: int) -> None:
    if count:
        into[pair] = into.get(pair, 0) + count

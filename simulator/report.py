"""What a traffic player measured, as the applications saw it."""

from __future__ import annotations

from dataclasses import dataclass, field

from router.contract.histogram import Buckets, observe, quantile

HIT_SHARE_MIN = 0.5
"""As in `router.contract.telemetry`: a hit has at least half of its prompt cached, a miss nothing."""


@dataclass(slots=True)
class ClientTotals:
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0


@dataclass(slots=True)
class TrafficReport:
    requests: int = 0
    """Finished with a complete answer."""
    failed: int = 0
    """Given up."""
    cut_off: int = 0
    """Under way when the player ended: the other side may have completed them, seen them end, or not have begun."""
    errors: dict[str, int] = field(default_factory=dict)
    """Answers that were no success, by status; `broken` = the connection ended inside an answer, `timeout`."""
    connect_retries: int = 0
    """Refused connections: nobody listened, nothing was sent."""
    backoffs: int = 0
    """Waits that a 429 or 503 asked for."""
    late: int = 0
    """Requests of an open-loop trace sent after their time, because too many were under way."""
    prompt_tokens: int = 0
    """Of the answers whose usage gives cached tokens."""
    cached_tokens: int = 0
    output_tokens: int = 0
    usage_unknown: int = 0
    ttft: dict[str, Buckets] = field(default_factory=dict)
    """Class → milliseconds."""
    duration: Buckets = field(default_factory=dict)
    by_namespace: dict[str, ClientTotals] = field(default_factory=dict)
    isolation_probes: int = 0
    isolation_cached_tokens: int = 0
    """Cached tokens that the second tenant of a probe was given: 0 where tenants are isolated."""

    def count_error(self, kind: str) -> None:
        self.errors[kind] = self.errors.get(kind, 0) + 1

    def count_answer(
        self,
        namespace: str,
        *,
        prompt_tokens: int | None,
        cached_tokens: int | None,
        output_tokens: int | None,
        ttft_ms: float,
        duration_ms: float,
    ) -> None:
        self.requests += 1
        self.output_tokens += output_tokens or 0
        observe(self.duration, duration_ms)
        observe(self.ttft.setdefault(ttft_class(prompt_tokens, cached_tokens), {}), ttft_ms)
        if prompt_tokens is None or cached_tokens is None:
            self.usage_unknown += 1
            return
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens
        totals = self.by_namespace.setdefault(namespace, ClientTotals())
        totals.requests += 1
        totals.prompt_tokens += prompt_tokens
        totals.cached_tokens += cached_tokens

    def summary(self, elapsed_s: float) -> dict[str, object]:
        """JSON-ready; an unknown share or quantile is None."""
        return {
            "duration_s": round(elapsed_s, 3),
            "requests": self.requests,
            "requests_per_s": round(self.requests / elapsed_s, 3) if elapsed_s > 0 else None,
            "failed": self.failed,
            "cut_off": self.cut_off,
            "errors": self.errors,
            "connect_retries": self.connect_retries,
            "backoffs": self.backoffs,
            "late": self.late,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "hit_token_share": self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None,
            "output_tokens": self.output_tokens,
            "usage_unknown": self.usage_unknown,
            **{f"ttft_{kind}_ms": _quantiles(self.ttft.get(kind, {})) for kind in TTFT_CLASSES},
            "duration_ms": _quantiles(self.duration),
            "by_namespace": {
                name: {
                    "requests": totals.requests,
                    "prompt_tokens": totals.prompt_tokens,
                    "cached_tokens": totals.cached_tokens,
                }
                for name, totals in sorted(self.by_namespace.items())
            },
            "isolation": {"probes": self.isolation_probes, "cached_tokens": self.isolation_cached_tokens},
        }


TTFT_CLASSES = ("hit", "partial", "miss", "unknown")


def ttft_class(prompt_tokens: int | None, cached_tokens: int | None) -> str:
    if not prompt_tokens or cached_tokens is None:
        return "unknown"
    if cached_tokens == 0:
        return "miss"
    return "hit" if cached_tokens / prompt_tokens >= HIT_SHARE_MIN else "partial"


def _quantiles(buckets: Buckets) -> dict[str, float | int | None]:
    return {"count": sum(buckets.values()), "p50": quantile(buckets, 0.5), "p95": quantile(buckets, 0.95)}

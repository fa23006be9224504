"""What the selectors of reuse return: how far it reached, and where each prompt token that was computed was lost."""

from __future__ import annotations

from dataclasses import dataclass, field

from controlplane.telemetry.figures import Series, Values

CAUSES = ("workload", "eviction", "routing", "stale", "unknown")
"""Why a prompt token was computed, in the order in which it is lost (`router.adapters.telemetry_reach`)."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Tokens of a span. Each sum is at most the one before it, so that the losses add up to prompt − delivered."""

    requests: int
    """Whose worker named its cached tokens."""
    prompt_tokens: int
    """Of all requests with a usage block."""
    repeated_tokens: int
    """Available: came before in the namespace's history, on any worker."""
    best_hit_tokens: int
    expected_hit_tokens: int
    """Captured by routing."""
    hit_tokens: int
    """Delivered by workers."""
    unknown_tokens: int
    """Computed for a cause that nobody knows: no cached tokens named, or no text to compare."""
    saved_prefill_ms: float

    @property
    def losses(self) -> dict[str, int]:
        """Cause → tokens, in the order of CAUSES."""
        return {
            "workload": max(self.prompt_tokens - self.unknown_tokens - self.repeated_tokens, 0),
            "eviction": self.repeated_tokens - self.best_hit_tokens,
            "routing": self.best_hit_tokens - self.expected_hit_tokens,
            "stale": self.expected_hit_tokens - self.hit_tokens,
            "unknown": self.unknown_tokens,
        }

    @property
    def main_cause(self) -> str:
        """The cause that lost most, "" where nothing was lost."""
        losses = self.losses
        cause = max(losses, key=losses.__getitem__)
        return cause if losses[cause] > 0 else ""

    def share(self, tokens: int) -> float | None:
        """Of all prompt tokens, 0…1."""
        return tokens / self.prompt_tokens if self.prompt_tokens else None


@dataclass(frozen=True, slots=True)
class NamedReach:
    name: str
    reach: Reach


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachSeries(Series):
    """Tokens a bucket."""

    prompt_tokens: Values
    repeated_tokens: Values
    expected_hit_tokens: Values
    hit_tokens: Values
    hit_size_p50: Values
    """Hit tokens of a request."""
    hit_size_p95: Values
    total: Reach | None
    """Of all buckets, the open one included; None = no router reported."""
    seconds: float
    """From the first bucket that was reported to the end: a fleet that began in the middle has the rates of its own
    time."""
    total_size_p50: float | None
    total_size_p95: float | None
    routing_loss: dict[str, int] = field(default_factory=dict)
    """Tokens lost by routing, by reason: `router.contract.telemetry.ROUTING_LOSSES`."""
    models: list[NamedReach] = field(default_factory=list)
    """Those that lost most first."""

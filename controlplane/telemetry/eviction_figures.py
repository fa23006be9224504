"""What the selectors of eviction churn return: blocks, tokens and GPU-seconds with None for unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from controlplane.telemetry.figures import Series, Values
from router.contract.histogram import GAMMA, INDEX_MIN, quantile
from router.contract.telemetry import EVICTS


@dataclass(frozen=True, slots=True)
class Price:
    """What a block that comes back costs: its tokens are computed again."""

    block_tokens: int | None
    tokens_per_s: float | None
    """Prefill rate of the pool's workers."""

    def tokens(self, blocks: float) -> float | None:
        return None if self.block_tokens is None else blocks * self.block_tokens

    def gpu_s(self, blocks: float) -> float | None:
        tokens = self.tokens(blocks)
        return None if tokens is None or not self.tokens_per_s else tokens / self.tokens_per_s


@dataclass(frozen=True, slots=True)
class NamespaceLoss:
    """A namespace as victim of evictions, its own included."""

    namespace: str
    evicted_blocks: int
    by_others: int
    """Evicted for another namespace, as inferred."""
    restored_blocks: int
    lost_tokens: float | None
    lost_gpu_s: float | None


@dataclass(frozen=True, slots=True)
class Evictions:
    """What became of a pool's, or of all pools', cached blocks over a range."""

    heard_s: float
    """Worker-seconds that events speak for; 0 = nothing was heard."""
    evicted: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(who stored next, whose they were) → blocks."""
    restored_of: Mapping[str, int] = field(default_factory=dict)
    lifetime: Mapping[int, int] = field(default_factory=dict)
    """Buckets of milliseconds."""
    restore_gap: Mapping[int, int] = field(default_factory=dict)
    losses: Sequence[NamespaceLoss] = ()
    """Most lost first."""

    @property
    def evicted_blocks(self) -> int:
        return sum(self.evicted.values())

    @property
    def lifetime_ms(self) -> float | None:
        return quantile(self.lifetime, 0.5)

    @property
    def restore_gap_ms(self) -> float | None:
        return quantile(self.restore_gap, 0.5)


@dataclass(frozen=True, slots=True)
class WorkerChurn:
    """One worker over a range. None = unknown."""

    worker: str
    stored: int | None
    removed: int | None
    restored: int | None
    restored_share: float | None
    """Of the removed blocks, those that came back within 5 min."""
    lost_gpu_s: float | None
    kv_use_mean: float | None
    kv_use_max: float | None
    high_share: float | None
    """Buckets whose mean KV use was at or above the high watermark."""
    between_share: float | None
    """Above the low and below the high watermark."""
    resident_share: float | None
    """At present: cached blocks ÷ capacity."""
    gaps: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KvUseLines(Series):
    """Mean KV use of the fullest workers, 0…1."""

    by_worker: dict[str, Values]


DURATION_BINS_S = (1.0, 3.0, 10.0, 30.0, 60.0, 180.0, 600.0, 1800.0, 3600.0, 10_800.0)
"""Upper ends of what is drawn; the last bin is open."""


def binned(buckets: Mapping[int, int]) -> list[int]:
    """Counts of a histogram of milliseconds in DURATION_BINS_S and above them: each bucket where its middle lies."""
    counts = [0] * (len(DURATION_BINS_S) + 1)
    for index, count in buckets.items():
        middle_s = 0.0 if index == INDEX_MIN else GAMMA ** (index - 0.5) / 1000.0
        place = sum(middle_s > end for end in DURATION_BINS_S)
        counts[place] += count
    return counts


def pair_of(label: str) -> tuple[str, str]:
    """`<who stored next>EVICTS<whose they were>` in two."""
    evictor, _, victim = label.partition(EVICTS)
    return evictor, victim

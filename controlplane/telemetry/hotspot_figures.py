"""What the selectors of hot spots return: figures with units, None for unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from controlplane.telemetry.figures import Series, Values


@dataclass(frozen=True, slots=True)
class WorkerShare:
    worker: str
    requests: int
    share: float
    """Of the prefix's requests, 0…1."""
    holds: bool
    """Whether a router believed at the end of the range that it holds the prefix."""


@dataclass(frozen=True, slots=True)
class HotSpot:
    """One prefix over a range, as the routers counted and predicted it."""

    prefix: str
    """Keyed id, 16 hex digits: not a block hash."""
    namespace: str
    pool: str
    requests: int
    tokens: int
    """Of the head that its requests share: what a copy on another worker takes."""
    workers: list[WorkerShare]
    """Busiest first; holders without a request last."""
    hit_share: float | None
    queue_ms: float | None
    """Mean predicted queue of its requests."""
    spill_share: float | None
    placed_share: float | None
    """Requests under a placement rule."""
    load: float | None
    """The most of the range, as a share of what one worker can do."""
    homes: int | None
    """The most of the range, by load and rule."""

    @property
    def top_share(self) -> float:
        return self.workers[0].share if self.workers else 0.0

    @property
    def serving(self) -> int:
        """Workers that got a request of it."""
        return sum(1 for worker in self.workers if worker.requests)

    @property
    def effective_workers(self) -> float:
        """Workers that would have equal shares at this concentration: 1 ÷ Σ share² (inverse Simpson index)."""
        squares = sum(worker.share**2 for worker in self.workers)
        return 1.0 / squares if squares else 0.0

    @property
    def holders(self) -> list[str]:
        return [worker.worker for worker in self.workers if worker.holds]


@dataclass(frozen=True, slots=True)
class Concentration:
    """How unequally something is spread: the Lorenz curve of its parts and its Gini coefficient."""

    parts: list[tuple[str, float]] = field(default_factory=list)
    """(name, amount), least first."""

    @property
    def total(self) -> float:
        return sum(amount for _, amount in self.parts)

    @property
    def gini(self) -> float | None:
        """0: all equal, towards 1: one has all. G = Σ (2i − n − 1) xᵢ ÷ (n Σ xᵢ) over ascending xᵢ (Gini's mean
        difference, in the form of Dixon et al., Ecology 68, 1987). None below two parts or without any amount."""
        count, total = len(self.parts), self.total
        if count < 2 or not total:
            return None
        ranked = sum((2 * rank - count - 1) * amount for rank, (_, amount) in enumerate(self.parts, start=1))
        return ranked / (count * total)

    def curve(self) -> list[tuple[float, float]]:
        """(share of the parts, share of the amount they have together), from (0, 0) to (1, 1)."""
        points, seen, total = [(0.0, 0.0)], 0.0, self.total
        for rank, (_, amount) in enumerate(self.parts, start=1):
            seen += amount
            points.append((rank / len(self.parts), seen / total if total else 0.0))
        return points


def concentration(amounts: Sequence[tuple[str, float]]) -> Concentration:
    return Concentration(sorted(amounts, key=lambda part: (part[1], part[0])))


@dataclass(frozen=True, slots=True, kw_only=True)
class ImbalanceSeries(Series):
    """Prefill that workers computed: the busiest worker's ÷ the mean of its pool's; of several pools the worst."""

    ratio: Values
    tokens_per_s: Values
    """Computed prompt tokens of all workers."""


@dataclass(frozen=True, slots=True)
class MatchPoint:
    """A sampled decision: what the chosen worker held and how long its queue was; the same of the best match."""

    request_id: str
    at: datetime
    worker: str
    matched_tokens: int
    queue_ms: float
    best_worker: str
    best_matched_tokens: int
    best_queue_ms: float

    @property
    def left_the_best(self) -> bool:
        return self.best_matched_tokens > self.matched_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixSeries(Series):
    """One prefix over time."""

    by_worker: dict[str, Values]
    """Requests a second; the busiest workers, the others under `OTHERS`."""
    hit_share: Values
    queue_ms: Values
    homes: Values


OTHERS = "other workers"

"""What a run is judged by. Only requests that arrive after the warm-up count; unfinished ones count as not served."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from simulator.fleet.engine import Sequence
from simulator.fleet.policy import Choice, WorkerView
from simulator.fleet.workload import Request, Workload

WARM_UP_SHARE = 0.25
"""Of the time in which requests arrive: caches fill and the router's rates settle."""
TTFT_GOOD_S = 2.0


@dataclass(slots=True)
class Measured:
    """Every routed request of a run."""

    by_request: dict[int, Sequence] = field(default_factory=dict)
    """Of a request whose worker died, the last attempt."""
    spilled: set[int] = field(default_factory=set)
    finished_requests: int = 0
    failed_over: int = 0
    """Attempts that a dying worker ended."""

    @property
    def sequences(self) -> list[Sequence]:
        return list(self.by_request.values())

    def routed(self, request: Request, choice: Choice, sequence: Sequence) -> None:
        self.by_request[request.id] = sequence
        if choice.spilled:
            self.spilled.add(request.id)

    def finished(self, sequence: Sequence, now: float) -> None:
        self.finished_requests += 1


@dataclass(frozen=True, slots=True)
class RunResult:
    requests: int
    """Routed in all, warm-up included."""
    finished: int
    unfinished: int
    measured: int
    """Arrived after the warm-up."""
    hit_token_share: float | None
    """Of the prompt tokens of measured requests that were admitted."""
    ttft_mean_s: float | None
    """A request without a first token counts with the time it waited: a lower bound."""
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    good: int
    """Measured requests whose first token came in time: within TTFT_GOOD_S unless the run says otherwise."""
    goodput_per_s: float
    prefill_max_over_mean: float | None
    """Prefilled tokens of the busiest worker over the mean, the whole run."""
    evicted_blocks_per_min: float
    """A worker, the whole run; blocks of 512 tokens."""
    spills: int
    preemptions: int
    busy_share: float
    failed_over: int = 0
    """Attempts that a dying worker ended; their requests were sent again at once."""
    loaded_token_share: float = 0.0
    """Of the prompt tokens of measured requests that were admitted, from the shared tier; part of the hits."""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def summarise(
    measured: Measured, workers: list[WorkerView], workload: Workload, end_s: float, *, good_s: float = TTFT_GOOD_S
) -> RunResult:
    from_s = WARM_UP_SHARE * workload.duration_s
    sequences = measured.sequences
    window = [each for each in sequences if from_s <= each.request.arrival_s <= workload.duration_s]
    times = sorted(
        (end_s if each.first_token_s is None else each.first_token_s) - each.request.arrival_s for each in window
    )
    good = sum(1 for each in window if _good(each, good_s))
    admitted = [each for each in window if each.cached_tokens is not None]
    prompt_tokens = sum(each.request.prompt_tokens for each in admitted)
    prefilled = [worker.engine.prefilled_tokens for worker in workers]
    mean_prefilled = sum(prefilled) / len(prefilled)
    return RunResult(
        requests=len(sequences),
        finished=measured.finished_requests,
        unfinished=len(sequences) - measured.finished_requests,
        measured=len(window),
        hit_token_share=sum(each.cached_tokens or 0 for each in admitted) / prompt_tokens if prompt_tokens else None,
        ttft_mean_s=sum(times) / len(times) if times else None,
        ttft_p50_s=_quantile(times, 0.5),
        ttft_p95_s=_quantile(times, 0.95),
        good=good,
        goodput_per_s=good / (workload.duration_s - from_s),
        prefill_max_over_mean=max(prefilled) / mean_prefilled if mean_prefilled else None,
        evicted_blocks_per_min=60 * sum(w.engine.cache.evictions for w in workers) / len(workers) / end_s,
        spills=sum(1 for each in window if each.request.id in measured.spilled),
        preemptions=sum(worker.engine.preemptions for worker in workers),
        busy_share=sum(worker.engine.busy_s for worker in workers) / len(workers) / end_s,
        failed_over=measured.failed_over,
        loaded_token_share=sum(each.loaded_tokens for each in admitted) / prompt_tokens if prompt_tokens else 0.0,
    )


def _good(sequence: Sequence, good_s: float) -> bool:
    first_s = sequence.first_token_s
    return first_s is not None and first_s - sequence.request.arrival_s <= good_s


def _quantile(ordered: list[float], share: float) -> float | None:
    """Nearest rank."""
    if not ordered:
        return None
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

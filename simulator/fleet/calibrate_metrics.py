"""What two scrapes of a worker's `/metrics` tell of its costs: what its counters grew by in between.

vLLM's histograms of times begin at 0.3 s, so that sums and counts are read, not buckets: means over the interval. Every
figure that the interval does not hold is None, never a guess.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from simulator.fleet.calibration import PrefillPoint

PREFILL, QUEUE = "vllm:request_prefill_time_seconds", "vllm:request_queue_time_seconds"
TTFT, STEP = "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"
COMPUTED, PROMPT = "vllm:request_prefill_kv_computed_tokens", "vllm:request_prompt_tokens"
ITERATIONS, GENERATED = "vllm:iteration_tokens_total", "vllm:generation_tokens_total"
CACHE_CONFIG, STARTED = "vllm:cache_config_info", "process_start_time_seconds"
COUNTERS = (
    *(f"{name}_{part}" for name in (PREFILL, QUEUE, TTFT, STEP, COMPUTED, PROMPT) for part in ("sum", "count")),
    f"{ITERATIONS}_count",
    GENERATED,
)
RESERVED_BLOCKS = 1
"""vLLM keeps one for its own use."""
REQUESTS_MIN = 5
"""Fewer in an interval are an anecdote."""


class MetricsError(Exception):
    """Two scrapes tell nothing; the message says why."""


@dataclass(frozen=True, slots=True)
class Page:
    """One scrape: values summed over labels, and the labels of info metrics."""

    sums: Mapping[str, float]
    infos: Mapping[str, Mapping[str, str]]
    started_at: float | None = None

    def info(self, name: str) -> Mapping[str, str]:
        return self.infos.get(name, {})


def read_page(text: str) -> Page:
    """The series that matter here. Raises MetricsError where there is none of vLLM's."""
    sums: dict[str, float] = {}
    infos: dict[str, Mapping[str, str]] = {}
    started_at = None
    for line in text.splitlines():
        name, labels, value = _series(line)
        if name == CACHE_CONFIG:
            infos[name] = labels
        elif name == STARTED:
            started_at = value
        elif name in COUNTERS and value is not None:
            sums[name] = sums.get(name, 0.0) + value
    if not sums and not infos:
        raise MetricsError("no series of vLLM is on the page; does the worker run with --disable-log-stats?")
    return Page(sums, infos, started_at)


def _series(line: str) -> tuple[str, Mapping[str, str], float | None]:
    """Name, labels and value of one line of the text format; the empty name for anything else."""
    if not line or line.startswith("#"):
        return "", {}, None
    head, _, rest = line.rpartition(" ")
    name, brace, inside = head.partition("{")
    try:
        value = float(rest)
    except ValueError:
        return "", {}, None
    return name.strip(), _labels(inside.rstrip("}")) if brace else {}, value if math.isfinite(value) else None


def _labels(text: str) -> dict[str, str]:
    """`a="1",b="x,y"`; values with escaped quotes are none of those read here."""
    found = {}
    for part in text.split('",'):
        name, equals, value = part.partition('="')
        if equals:
            found[name.strip()] = value.rstrip('"')
    return found


@dataclass(frozen=True, slots=True)
class Interval:
    """What a worker did between two scrapes. Means over the requests that ended."""

    requests: int
    prefill: PrefillPoint | None
    """The mean request: tokens that were computed, tokens that were cached, seconds of prefill."""
    overhead_s: float | None
    """From a request's arrival to its first token, beside queue and prefill."""
    step_s: float | None
    """Between two tokens of an answer."""
    batch: float | None
    """Tokens generated a step: sequences that decoded, in the mean."""
    context_tokens: float | None
    """Of a decoding sequence: prompt and half of the answer."""
    queued_share: float | None
    """Of the time to a first token that was queueing: above a tenth the prefill was shared, too."""
    kv_capacity_tokens: int | None
    notes: list[str] = field(default_factory=list)
    """What is unknown, and why."""


def interval(before: Page, after: Page) -> Interval:
    """Raises MetricsError where the counters went backwards."""
    _check_one_life(before, after)
    grew = {name: after.sums[name] - before.sums.get(name, 0.0) for name in COUNTERS if name in after.sums}
    requests = int(grew.get(f"{PREFILL}_count", 0))
    notes = []
    if requests < REQUESTS_MIN:
        notes.append(
            f"{requests} requests ended between the scrapes, at least {REQUESTS_MIN} are needed: prefill unknown"
        )
    prefill = _prefill(grew) if requests >= REQUESTS_MIN else None
    step_s = _mean(grew, STEP)
    if step_s is None:
        notes.append("no answer of two tokens between the scrapes: decode time unknown")
    capacity = _capacity(after)
    if capacity is None:
        notes.append("cache_config_info tells no blocks: KV capacity unknown")
    ttft_s, queue_s, prefill_s = _mean(grew, TTFT), _mean(grew, QUEUE), _mean(grew, PREFILL)
    overhead_s = queued_share = None
    if prefill is not None and ttft_s and queue_s is not None and prefill_s is not None:
        overhead_s, queued_share = max(0.0, ttft_s - queue_s - prefill_s), queue_s / ttft_s
    return Interval(
        requests=requests,
        prefill=prefill,
        overhead_s=overhead_s,
        step_s=step_s,
        batch=_ratio(grew.get(GENERATED), grew.get(f"{ITERATIONS}_count")),
        context_tokens=_context(grew),
        queued_share=queued_share,
        kv_capacity_tokens=capacity,
        notes=notes,
    )


def _check_one_life(before: Page, after: Page) -> None:
    backwards = next((name for name in COUNTERS if after.sums.get(name, 0.0) < before.sums.get(name, 0.0)), None)
    if backwards is None and before.started_at == after.started_at:
        return
    seen = f"{backwards} went backwards" if backwards else "the process started anew"
    raise MetricsError(f"{seen}: the worker restarted, or the pages are in the wrong order; the interval is unknown")


def _prefill(grew: Mapping[str, float]) -> PrefillPoint | None:
    computed, prompt, seconds = _mean(grew, COMPUTED), _mean(grew, PROMPT), _mean(grew, PREFILL)
    if not computed or prompt is None or not seconds:
        return None
    return PrefillPoint(computed, max(0.0, prompt - computed), seconds)


def _context(grew: Mapping[str, float]) -> float | None:
    prompt, requests = _mean(grew, PROMPT), grew.get(f"{PROMPT}_count")
    answer = _ratio(grew.get(GENERATED), requests)
    return None if prompt is None or answer is None else prompt + answer / 2


def _capacity(page: Page) -> int | None:
    config = page.info(CACHE_CONFIG)
    try:
        return (int(config["num_gpu_blocks"]) - RESERVED_BLOCKS) * int(config["block_size"])
    except (KeyError, ValueError):
        return None


def _mean(grew: Mapping[str, float], name: str) -> float | None:
    return _ratio(grew.get(f"{name}_sum"), grew.get(f"{name}_count"))


def _ratio(total: float | None, count: float | None) -> float | None:
    return total / count if total is not None and count else None


def intervals(pages: Sequence[Page]) -> list[Interval]:
    """Between each page and the next. Raises MetricsError as `interval`."""
    return [interval(before, after) for before, after in itertools.pairwise(pages)]

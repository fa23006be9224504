"""Reads the few series Tidemark uses out of a worker's `/metrics` page. Pure: text in, `Reading` out.

One pass over the lines; only lines whose name is wanted are taken apart, and a series once for all pages (0.3–0.5 ms
for a real page that is seen first, where the general parser takes 60 ms). Parity with that parser is a test.

Data parallelism: counters and queue lengths are summed over engines, KV use is averaged (C49).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

PAGE_BYTES_MAX = 1024 * 1024
"""A real page is 57–80 KB."""

ALIASES = {
    "vllm:gpu_cache_usage_perc": "vllm:kv_cache_usage_perc",
    "vllm:gpu_prefix_cache_queries_total": "vllm:prefix_cache_queries_total",
    "vllm:gpu_prefix_cache_queries": "vllm:prefix_cache_queries_total",
    "vllm:gpu_prefix_cache_hits_total": "vllm:prefix_cache_hits_total",
    "vllm:gpu_prefix_cache_hits": "vllm:prefix_cache_hits_total",
    "vllm:prefix_cache_queries": "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits": "vllm:prefix_cache_hits_total",
}
"""Older spelling → current one. A page that carries both counts the current one."""

COUNTERS = {
    "vllm:prefix_cache_queries_total": "prefix_query_tokens",
    "vllm:prefix_cache_hits_total": "prefix_hit_tokens",
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:generation_tokens_total": "generation_tokens",
    "vllm:num_preemptions_total": "preemptions",
    "vllm:request_success_total": "requests_finished",
    "vllm:time_to_first_token_seconds_sum": "ttft_sum_s",
    "vllm:time_to_first_token_seconds_count": "ttft_count",
    "vllm:request_queue_time_seconds_sum": "queue_sum_s",
    "vllm:request_queue_time_seconds_count": "queue_count",
    "vllm:kv_offload_load_bytes_total": "offload_load_bytes",
    "vllm:kv_offload_load_time_total": "offload_load_s",
    "vllm:nixl_bytes_transferred_sum": "nixl_bytes",
    "vllm:nixl_xfer_time_seconds_sum": "nixl_s",
}
"""Series → counter name, summed over all label sets."""

LABELLED_COUNTERS = {
    "vllm:prompt_tokens_by_source_total": ("source", "source:"),
    "vllm:time_to_first_token_seconds_bucket": ("le", "ttft_le:"),
    "vllm:request_queue_time_seconds_bucket": ("le", "queue_le:"),
}
"""Series → (label, prefix): one counter for each value of the label, `source:local_compute`, `ttft_le:0.1`."""

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
WAITING_BY_REASON = "vllm:num_requests_waiting_by_reason"
KV_USE = "vllm:kv_cache_usage_perc"
CACHE_CONFIG = "vllm:cache_config_info"
STARTED_AT = "process_start_time_seconds"

SERIES_WANTED = (
    RUNNING,
    WAITING,
    WAITING_BY_REASON,
    KV_USE,
    CACHE_CONFIG,
    STARTED_AT,
    *COUNTERS,
    *LABELLED_COUNTERS,
    *ALIASES,
)
SNIFFED_CHARACTERS = 16_384
"""How much of a page without wanted series is looked at to tell it from garbage."""
LABEL_VALUES_MAX = 64
"""Distinct values of one label that are kept; a page with more is hostile."""

SERIES_KEPT_MAX = 8_192
"""Series that are remembered from page to page: of a fleet's workers they are the same but for the model."""
SERIES_LENGTH_MAX = 500

# Possessive quantifiers: a hostile line cannot make the match backtrack.
_SERIES_PATTERN = r'([a-zA-Z_:][\w:]*+)(?:\{((?:[^"{}]++|"(?:[^"\\]++|\\.)*+")*+)\})?'
_SERIES = re.compile(_SERIES_PATTERN + "$")
_SAMPLE = re.compile(_SERIES_PATTERN + r"[ \t]++(\S++)(?:[ \t]++-?\d++)?(?:[ \t]++#.*)?[ \t]*+$")
_LABEL = re.compile(r'([a-zA-Z_]\w*+)\s*+=\s*+"((?:[^"\\]++|\\.)*+)"')
_ESCAPE = re.compile(r"\\(.)")
_WANTED = frozenset(SERIES_WANTED)
_BEGINNINGS = ("vllm:", STARTED_AT)


@dataclass(slots=True)
class Reading:
    """What one page said. None or a missing key is unknown, never 0."""

    running: float | None = None
    waiting: float | None = None
    waiting_by_reason: dict[str, float] = field(default_factory=dict)
    kv_use: float | None = None
    """0…1, blocks held by running requests."""
    started_at: float | None = None
    """Unix seconds."""
    counters: dict[str, float] = field(default_factory=dict)
    """Cumulative, by the names of COUNTERS and LABELLED_COUNTERS. Buckets are cumulative over `le`, as on the page."""
    facts: dict[str, object] = field(default_factory=dict)
    """block_size, kv_blocks, hash_algorithm, prefix_caching: those the page names."""
    vllm_series: int = 0
    """Wanted `vllm:` samples seen; 0 means the worker hides its figures (--disable-log-stats)."""
    bad_samples: int = 0
    """Wanted samples that could not be read, were NaN, infinite or out of range: each is unknown."""

    is_metrics_page: bool = True
    """False when the text holds no sample of any kind, although it is not empty."""

    @property
    def metrics_missing(self) -> bool:
        return self.vllm_series == 0


class Sample(NamedTuple):
    name: str
    labels: dict[str, str]
    """Shared between samples: read only."""
    value: float


_UNREAD = Sample("", {}, 0.0)


def read_metrics_page(text: str) -> Reading:
    """Never raises for content: what cannot be read counts in `bad_samples`."""
    reading = Reading()
    grouped: dict[str, list[Sample]] = {}
    for sample in _wanted_samples(text, reading):
        grouped.setdefault(sample.name, []).append(sample)
    _resolve_aliases(grouped)
    reading.vllm_series = sum(len(samples) for name, samples in grouped.items() if name.startswith("vllm:"))
    _read_gauges(grouped, reading)
    _read_counters(grouped, reading)
    reading.facts = _facts_of(grouped.get(CACHE_CONFIG, []))
    reading.is_metrics_page = reading.vllm_series > 0 or _holds_samples(text)
    return reading


def _holds_samples(text: str) -> bool:
    """Whether any of the first lines is a sample; an empty page is a page without series."""
    lines = [line for line in text[:SNIFFED_CHARACTERS].split("\n") if line.strip() and line[0] != "#"]
    return not text.strip() or any(parse_sample(line) is not None for line in lines)


def _wanted_samples(text: str, reading: Reading) -> Iterator[Sample]:
    for line in text.split("\n"):
        if not line.startswith(_BEGINNINGS):
            continue
        sample = _known_sample(line)
        if sample is None:
            continue
        if sample is _UNREAD:
            name = line.partition("{")[0] if "{" in line else line.partition(" ")[0]
            if name.strip() not in _WANTED:
                continue
            sample = parse_sample(line)
        if sample is None:
            reading.bad_samples += 1
        else:
            yield sample


def _known_sample(line: str) -> Sample | None:
    """The sample of a plain line, by its series as an earlier page had it; None for one that is not wanted, _UNREAD
    for a line that is to be taken apart."""
    series, _, text = line.rpartition(" ")
    known = _series(series) if len(series) <= SERIES_LENGTH_MAX else ()
    if not known:
        return None if known is None else _UNREAD
    try:
        return Sample(*known, float(text))
    except ValueError:
        return _UNREAD


@lru_cache(maxsize=SERIES_KEPT_MAX)
def _series(text: str) -> tuple[str, dict[str, str]] | tuple[()] | None:
    """Name and labels of a wanted series; None of another one; () of what is more than a series."""
    match = _SERIES.match(text)
    if match is None:
        return ()
    name, labels = match.groups()
    return (name, _labels_of(labels) if labels else {}) if name in _WANTED else None


def parse_sample(line: str) -> Sample | None:
    """One exposition line, or None when it does not parse. The value may be NaN or infinite."""
    match = _SAMPLE.match(line.strip())
    if match is None:
        return None
    name, labels, text = match.groups()
    try:
        value = float(text)
    except ValueError:
        return None
    return Sample(name, _labels_of(labels) if labels else {}, value)


def _labels_of(text: str) -> dict[str, str]:
    pairs = _LABEL.findall(text)
    if "\\" not in text:
        return dict(pairs)
    return {name: _ESCAPE.sub(lambda m: "\n" if m[1] == "n" else m[1], value) for name, value in pairs}


def _resolve_aliases(grouped: dict[str, list[Sample]]) -> None:
    for older, current in ALIASES.items():
        samples = grouped.pop(older, None)
        if samples and current not in grouped:
            grouped[current] = samples


def _read_gauges(grouped: dict[str, list[Sample]], reading: Reading) -> None:
    reading.running = _total(grouped.get(RUNNING), reading)
    reading.waiting = _total(grouped.get(WAITING), reading)
    reading.started_at = _total(grouped.get(STARTED_AT), reading)
    reading.waiting_by_reason = _by_label(grouped.get(WAITING_BY_REASON), "reason", reading)
    uses = grouped.get(KV_USE)
    kv_use = _total(uses, reading)
    if uses and kv_use is not None:
        reading.kv_use = kv_use / len(uses)
        if reading.kv_use > 1:
            reading.kv_use = None
            reading.bad_samples += 1


def _read_counters(grouped: dict[str, list[Sample]], reading: Reading) -> None:
    for series, name in COUNTERS.items():
        value = _total(grouped.get(series), reading)
        if value is not None:
            reading.counters[name] = value
    for series, (label, prefix) in LABELLED_COUNTERS.items():
        for value_of_label, value in _by_label(grouped.get(series), label, reading).items():
            reading.counters[prefix + value_of_label] = value


def _total(samples: list[Sample] | None, reading: Reading) -> float | None:
    """The sum over engines and models; None when nothing or any unusable value is there."""
    if not samples:
        return None
    bad = sum(1 for sample in samples if not _usable(sample.value))
    reading.bad_samples += bad
    return None if bad else math.fsum(sample.value for sample in samples)


def _by_label(samples: list[Sample] | None, label: str, reading: Reading) -> dict[str, float]:
    sums: dict[str, float] = {}
    unusable = set()
    for sample in samples or []:
        value_of_label = sample.labels.get(label)
        if value_of_label is None or (value_of_label not in sums and len(sums) >= LABEL_VALUES_MAX):
            reading.bad_samples += 1
        elif not _usable(sample.value):
            reading.bad_samples += 1
            unusable.add(value_of_label)
        else:
            sums[value_of_label] = sums.get(value_of_label, 0.0) + sample.value
    return {value: total for value, total in sums.items() if value not in unusable}


def _usable(value: float) -> bool:
    return 0 <= value < math.inf


def _facts_of(samples: list[Sample]) -> dict[str, object]:
    """Facts from `cache_config_info`, whose labels are texts, some of them "None"."""
    if not samples:
        return {}
    labels = samples[0].labels
    facts: dict[str, object] = {}
    block_size = _int_of(labels.get("block_size"))
    if block_size:
        facts["block_size"] = block_size
    blocks = _blocks_of(samples, block_size)
    if blocks:
        facts["kv_blocks"] = blocks
    if labels.get("prefix_caching_hash_algo", "None") != "None":
        facts["hash_algorithm"] = labels["prefix_caching_hash_algo"][:40]
    if labels.get("enable_prefix_caching") in ("True", "False"):
        facts["prefix_caching"] = labels["enable_prefix_caching"] == "True"
    return facts


def _blocks_of(samples: list[Sample], block_size: int | None) -> int | None:
    """Blocks of all engines: `kv_cache_size_tokens` is an engine's own, `num_gpu_blocks` all engines' together."""
    tokens = [_int_of(sample.labels.get("kv_cache_size_tokens")) for sample in samples]
    if block_size and all(tokens):
        return sum(count or 0 for count in tokens) // block_size
    return max((_int_of(sample.labels.get("num_gpu_blocks")) or 0 for sample in samples), default=0) or None


def _int_of(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 16 else None

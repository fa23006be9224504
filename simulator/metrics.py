"""The worker's `/metrics` page: vLLM 0.32's families, labels, help texts and buckets, filled by the simulated engine.

`metrics_page.json` lists the families as a real worker exposes them. The exposition itself is prometheus-client's,
which real workers use too, so the text has the same form (`_created` series, number format, process and gc series).
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from simulator.cache import CacheTimes
from simulator.engine import Engine, Sequence, Step, TokenOut

ENGINE_INDEX = "0"
_KINDS: dict[str, type[MetricWrapperBase]] = {
    "counter": Counter, "gauge": Gauge, "histogram": Histogram, "summary": Summary,
}  # fmt: skip
_START_TIME = re.compile(r"^process_start_time_seconds .*$", re.MULTILINE)
_PAGE_FILE = Path(__file__).with_name("metrics_page.json")


class WorkerMetrics:
    def __init__(self, *, model: str, engine: Engine, hash_algorithm: str) -> None:
        self._labels = {"engine": ENGINE_INDEX, "model_name": model}
        self._engine = engine
        self._hash_algorithm = hash_algorithm
        self._started_at: float | None = None
        self._register()

    def reset(self) -> None:
        """All counters start over, as after a restart of the worker; the start time moves with them."""
        self._started_at = time.time()
        self._register()

    def page(self, names: Iterable[str] = ()) -> bytes:
        """The page in Prometheus text format 0.0.4; with `names`, only the families that own these series."""
        self._set_gauges()
        wanted = list(names)
        registry = self._registry.restricted_registry(wanted) if wanted else self._registry
        text = generate_latest(registry)
        if self._started_at is None:
            return text
        return _START_TIME.sub(f"process_start_time_seconds {self._started_at!r}", text.decode()).encode()

    # observations, by who reports them

    def observe_step(self, step: Step, times: CacheTimes) -> None:
        self._histogram("vllm:iteration_tokens_total").observe(step.tokens)
        if step.preempted:
            self._counter("vllm:num_preemptions_total").inc(step.preempted)
        for name, values in (
            ("vllm:kv_block_lifetime_seconds", times.lifetime_s),
            ("vllm:kv_block_idle_before_evict_seconds", times.idle_before_evict_s),
            ("vllm:kv_block_reuse_gap_seconds", times.reuse_gap_s),
        ):
            histogram = self._histogram(name)
            for value in values:
                histogram.observe(value)

    def observe_admission(self, sequence: Sequence) -> None:
        """Prefix cache queries and hits count tokens, when a request is first scheduled."""
        cached = sequence.cached_tokens or 0
        self._counter("vllm:prefix_cache_queries_total").inc(sequence.prompt_tokens)
        self._counter("vllm:prefix_cache_hits_total").inc(cached)
        self._counter("vllm:prompt_tokens_cached_by_source_total", "device").inc(cached)

    def observe_token(self, output: TokenOut) -> None:
        self._counter("vllm:generation_tokens_total").inc()
        if output.since_last_s is None:
            self._observe_first_token(output.sequence)
        else:
            self._histogram("vllm:inter_token_latency_seconds").observe(output.since_last_s)
        if output.finish_reason is not None:
            self._counter("vllm:request_success_total", output.finish_reason).inc()
            self._observe_finished(output.sequence)

    def observe_rejection(self) -> None:
        labels = {"model_name": self._labels["model_name"], "reason": "max_num_queued_reqs"}
        self._families["vllm:admission_rejections_total"].labels(**labels).inc()

    def observe_http(self, *, handler: str, method: str, status: int, request_bytes: int, response_bytes: int,
                     duration_s: float) -> None:  # fmt: skip
        families = self._families
        families["http_requests_total"].labels(handler=handler, method=method, status=f"{status // 100}xx").inc()
        families["http_request_size_bytes"].labels(handler=handler).observe(request_bytes)
        families["http_response_size_bytes"].labels(handler=handler).observe(response_bytes)
        families["http_request_duration_highr_seconds"].observe(duration_s)
        families["http_request_duration_seconds"].labels(handler=handler, method=method).observe(duration_s)

    def _observe_first_token(self, sequence: Sequence) -> None:
        cached = sequence.cached_tokens or 0
        computed = sequence.prompt_tokens - cached
        self._counter("vllm:prompt_tokens_total").inc(sequence.prompt_tokens)
        self._counter("vllm:prompt_tokens_by_source_total", "local_compute").inc(computed)
        self._counter("vllm:prompt_tokens_by_source_total", "local_cache_hit").inc(cached)
        self._counter("vllm:prompt_tokens_cached_total").inc(cached)
        assert sequence.first_token_at is not None
        waited_s = sequence.first_token_at - sequence.arrived_at
        self._histogram("vllm:time_to_first_token_seconds").observe(waited_s)

    def _observe_finished(self, sequence: Sequence) -> None:
        assert sequence.scheduled_at is not None
        assert sequence.first_token_at is not None and sequence.last_token_at is not None
        decode_s = sequence.last_token_at - sequence.first_token_at
        for name, value in (
            ("request_prompt_tokens", sequence.prompt_tokens),
            ("request_generation_tokens", sequence.output_tokens),
            ("request_max_num_generation_tokens", sequence.output_tokens),
            ("request_params_n", 1),
            ("request_params_max_tokens", sequence.max_tokens),
            ("request_time_per_output_token_seconds", decode_s / max(1, sequence.output_tokens - 1)),
            ("e2e_request_latency_seconds", sequence.last_token_at - sequence.arrived_at),
            ("request_queue_time_seconds", sequence.scheduled_at - sequence.arrived_at),
            ("request_inference_time_seconds", sequence.last_token_at - sequence.scheduled_at),
            ("request_prefill_time_seconds", sequence.first_token_at - sequence.scheduled_at),
            ("request_decode_time_seconds", decode_s),
            ("request_num_preemptions", sequence.preemptions),
            ("request_prefill_kv_computed_tokens", sequence.prompt_tokens - (sequence.cached_tokens or 0)),
        ):
            self._histogram(f"vllm:{name}").observe(value)

    # construction

    def _register(self) -> None:
        self._registry = CollectorRegistry()
        GCCollector(self._registry)
        PlatformCollector(self._registry)
        ProcessCollector(registry=self._registry)
        self._children: dict[tuple[str, ...], Any] = {}
        self._families: dict[str, Any] = {}
        for family in _page()["families"]:
            self._families[family["name"]] = self._registered(family)
        self._gauge("vllm:engine_sleep_state", "awake").set(1)

    def _registered(self, family: dict[str, Any]) -> MetricWrapperBase:
        if family["name"] == "vllm:cache_config_info":
            return self._cache_config(family)
        arguments: dict[str, Any] = {"registry": self._registry}
        if "buckets" in family:
            arguments["buckets"] = family["buckets"]
        metric = _KINDS[family["type"]](family["name"], family["help"], family["labels"], **arguments)
        if family["name"].startswith("vllm:"):
            self._create_children(family, metric)
        return metric

    def _create_children(self, family: dict[str, Any], metric: MetricWrapperBase) -> None:
        """A real worker shows every label value from the start, at zero."""
        common = {name: self._labels[name] for name in family["labels"] if name in self._labels}
        own = [name for name in family["labels"] if name not in self._labels]
        for values in family.get("children", [[]]):
            child = metric.labels(**common, **dict(zip(own, values, strict=True)))
            self._children[(family["name"], *values)] = child

    def _cache_config(self, family: dict[str, Any]) -> MetricWrapperBase:
        limits = self._engine.limits
        tokens = limits.blocks * limits.block_size_tokens
        own = {
            "block_size": limits.block_size_tokens,
            "effective_attention_block_size": limits.block_size_tokens,
            "num_gpu_blocks": limits.blocks,
            "num_gpu_blocks_override": limits.blocks,
            "kv_cache_size_tokens": tokens,
            "kv_cache_max_concurrency": tokens / limits.max_model_len,
            "kv_cache_memory_bytes": None,
            "prefix_caching_hash_algo": self._hash_algorithm,
        }
        labels = _page()["cache_config"] | {name: str(value) for name, value in own.items()} | {"engine": ENGINE_INDEX}
        metric = Gauge(family["name"], family["help"], sorted(labels), registry=self._registry)
        metric.labels(**labels).set(1)
        return metric

    def _set_gauges(self) -> None:
        engine = self._engine
        self._gauge("vllm:num_requests_running").set(len(engine.running))
        self._gauge("vllm:num_requests_waiting").set(len(engine.waiting))
        self._gauge("vllm:num_requests_waiting_by_reason", "capacity").set(len(engine.waiting))
        self._gauge("vllm:kv_cache_usage_perc").set(engine.cache.pinned_share)

    def _child(self, *key: str) -> Any:  # Any: the three kinds share no typed interface for their methods
        return self._children[key]

    _counter = _gauge = _histogram = _child


@functools.cache
def _page() -> dict[str, Any]:  # Any: the file's shape is the one `_registered` reads
    page: dict[str, Any] = json.loads(_PAGE_FILE.read_text())
    return page


_SAMPLE_VALUE = re.compile(rb"^(vllm:[^ ]+(?:\{[^}]*\})?) .*$", re.MULTILINE)


def not_a_number(page: bytes) -> bytes:
    """The page with every vLLM value replaced by NaN (fault `metrics=nan`)."""
    return _SAMPLE_VALUE.sub(rb"\1 NaN", page)


def garbage(page: bytes) -> bytes:
    """Bytes that are no metrics page: the page cut in the middle of a line behind bytes that are not UTF-8."""
    return b"\xff\xfe<html>502 upstream</html>\n" + page[: len(page) // 3] + b'{engine="0'


def huge(page: bytes, size_bytes: int) -> bytes:
    line = b"# padding padding padding padding padding padding padding\n"
    return page + line * (size_bytes // len(line))

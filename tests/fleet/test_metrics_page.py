"""Reading `/metrics`: parity with prometheus_client's parser on real pages, and every odd form of a page."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from controlplane.fleet.dcgm_page import read_dcgm_page
from controlplane.fleet.metrics_page import COUNTERS, LABELLED_COUNTERS, parse_sample, read_metrics_page

PAGES = Path(__file__).parent.parent / "fixtures" / "vllm"
REAL_PAGES = ("idle", "after_load", "dp2", "disable_log_stats")


def page(name: str) -> str:
    return (PAGES / f"metrics_{name}.txt").read_text()


def reference(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Series name → samples, by the library."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


@pytest.mark.parametrize("name", REAL_PAGES)
def test_it_reads_real_pages_as_the_library_does(name):
    text = page(name)
    samples, reading = reference(text), read_metrics_page(text)
    assert reading.bad_samples == 0

    def total(series: str) -> float | None:
        values = [value for _, value in samples.get(series, [])]
        return math.fsum(values) if values else None

    assert reading.running == total("vllm:num_requests_running")
    assert reading.waiting == total("vllm:num_requests_waiting")
    assert reading.started_at == total("process_start_time_seconds")
    uses = [value for _, value in samples.get("vllm:kv_cache_usage_perc", [])]
    assert reading.kv_use == (sum(uses) / len(uses) if uses else None)
    for series, counter in COUNTERS.items():
        assert reading.counters.get(counter) == total(series), series
    for series, (label, prefix) in LABELLED_COUNTERS.items():
        sums: dict[str, float] = {}
        for labels, value in samples.get(series, []):
            sums[labels[label]] = sums.get(labels[label], 0.0) + value
        assert {k: v for k, v in reading.counters.items() if k.startswith(prefix)} == {
            prefix + value: total for value, total in sums.items()
        }
    reasons: dict[str, float] = {}
    for labels, value in samples.get("vllm:num_requests_waiting_by_reason", []):
        reasons[labels["reason"]] = reasons.get(labels["reason"], 0.0) + value
    assert reading.waiting_by_reason == reasons


def test_it_knows_what_a_loaded_worker_has_done():
    counters = read_metrics_page(page("after_load")).counters
    assert counters["prefix_hit_tokens"] == 16_288
    assert counters["source:local_compute"] == 95_179
    assert counters["requests_finished"] == 73


def test_it_reads_the_cache_configuration():
    facts = {"block_size": 32, "kv_blocks": 512, "hash_algorithm": "sha256", "prefix_caching": True}
    assert read_metrics_page(page("idle")).facts == facts
    # Both engines name the total of 1,024 blocks; each has 512.
    assert read_metrics_page(page("dp2")).facts == facts | {"kv_blocks": 1024}


def test_it_averages_the_kv_use_of_engines_and_sums_their_queues():
    text = (
        'vllm:kv_cache_usage_perc{engine="0"} 0.2\nvllm:kv_cache_usage_perc{engine="1"} 0.6\n'
        'vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_running{engine="1"} 4\n'
    )
    reading = read_metrics_page(text)
    assert reading.kv_use == pytest.approx(0.4)
    assert reading.running == 7


def test_a_page_without_vllm_series_is_unknown_not_zero():
    reading = read_metrics_page(page("disable_log_stats"))
    assert reading.metrics_missing and reading.is_metrics_page
    assert (reading.running, reading.waiting, reading.kv_use, reading.counters) == (None, None, None, {})


@pytest.mark.parametrize("text", ["<html><body>hello</body></html>", '{"a": 1}\n', "\x00\x01\x02"])
def test_a_page_in_another_format_is_told_apart(text):
    assert not read_metrics_page(text).is_metrics_page


def test_older_spellings_are_read():
    text = (
        "vllm:gpu_cache_usage_perc 0.5\nvllm:gpu_prefix_cache_queries_total 100\nvllm:gpu_prefix_cache_hits_total 40\n"
    )
    reading = read_metrics_page(text)
    assert reading.kv_use == 0.5
    assert (reading.counters["prefix_query_tokens"], reading.counters["prefix_hit_tokens"]) == (100, 40)


def test_transfers_of_both_kinds_of_connector_are_read():
    text = (
        "vllm:kv_offload_load_bytes_total 4096\nvllm:kv_offload_load_time_total 0.5\n"
        'vllm:nixl_bytes_transferred_sum{engine="0"} 100\nvllm:nixl_bytes_transferred_sum{engine="1"} 20\n'
        "vllm:nixl_xfer_time_seconds_sum 0.25\n"
    )
    names = ("offload_load_bytes", "offload_load_s", "nixl_bytes", "nixl_s")
    assert [read_metrics_page(text).counters[name] for name in names] == [4096, 0.5, 120, 0.25]


def test_the_current_spelling_wins_over_the_older_one():
    text = "vllm:gpu_cache_usage_perc 0.9\nvllm:kv_cache_usage_perc 0.1\n"
    assert read_metrics_page(text).kv_use == 0.1


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1", "abc", "", "1 2 3 4"])
def test_a_value_that_is_no_figure_is_unknown_and_counted(value):
    reading = read_metrics_page(f"vllm:num_requests_running {value}\nvllm:num_requests_waiting 2\n")
    assert reading.running is None
    assert reading.waiting == 2
    assert reading.bad_samples == 1


def test_a_kv_use_above_one_is_unknown():
    reading = read_metrics_page("vllm:kv_cache_usage_perc 87.5\n")
    assert (reading.kv_use, reading.bad_samples) == (None, 1)


@pytest.mark.parametrize(
    ("line", "labels", "value"),
    [
        ('a{x="1",y="2"} 3', {"x": "1", "y": "2"}, 3.0),
        ('a{y="2", x="1",} 1.5e+09', {"x": "1", "y": "2"}, 1.5e9),
        ('a{x="q\\"u\\\\o\\nte"} 1', {"x": 'q"u\\o\nte'}, 1.0),
        ('a{x="}"} 1 1700000000000', {"x": "}"}, 1.0),
        ("a 7", {}, 7.0),
        ("a\t7  ", {}, 7.0),
        ('a_bucket{le="+Inf"} 5 # {trace_id="x"} 0.3', {"le": "+Inf"}, 5.0),
    ],
)
def test_it_reads_a_line_in_every_legal_form(line, labels, value):
    sample = parse_sample(line)
    assert sample is not None
    assert (sample.labels, sample.value) == (labels, value)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=400))
def test_any_text_gives_a_reading(text):
    read_metrics_page(text)
    read_metrics_page("vllm:num_requests_running{" + text)


def test_a_hostile_line_costs_no_time():
    line = 'vllm:num_requests_running{a="' + '\\"' * 200_000 + "\n" + "vllm:num_requests_running{" + '"x",' * 100_000
    began = time.perf_counter()
    read_metrics_page(line)
    assert time.perf_counter() - began < 1


def test_label_values_are_bounded():
    text = "".join(f'vllm:prompt_tokens_by_source_total{{source="s{i}"}} 1\n' for i in range(1000))
    reading = read_metrics_page(text)
    assert len(reading.counters) == 64
    assert reading.bad_samples == 936


def test_it_reads_gpus_together():
    text = (
        'DCGM_FI_DEV_GPU_UTIL{gpu="0"} 40\nDCGM_FI_DEV_GPU_UTIL{gpu="1"} 80\n'
        'DCGM_FI_DEV_FB_USED{gpu="0"} 1000\nDCGM_FI_DEV_FB_FREE{gpu="0"} 500\n'
        'DCGM_FI_DEV_POWER_USAGE{gpu="0"} 300.5\nDCGM_FI_DEV_XID_ERRORS{gpu="0"} 79\n'
    )
    gpu = read_dcgm_page(text)
    assert gpu.utilisation == pytest.approx(0.6)
    assert (gpu.memory_used_mib, gpu.memory_total_mib, gpu.power_w, gpu.xid) == (1000, 1500, 300.5, 79)


def test_a_page_without_gpu_figures_says_nothing():
    assert read_dcgm_page("DCGM_FI_DEV_GPU_UTIL NaN\nother 1\n").as_json() == {}

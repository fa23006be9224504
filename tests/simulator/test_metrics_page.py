"""The page has the real page's families, types, help texts, labels and buckets, and the engine's numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.simulator.conftest import LiveWorker

FIXTURES = Path(__file__).parents[1] / "fixtures" / "vllm"
MODEL_LABELS = ("model_name",)


def families(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


async def page(worker: LiveWorker, path: str = "/metrics") -> dict[str, Metric]:
    response = (await worker.http.get(path)).raise_for_status()
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return families(response.text)


def value(page: dict[str, Metric], name: str, **labels: str) -> float:
    found = [
        sample.value
        for family in page.values()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    assert len(found) == 1, (name, found)
    return found[0]


def shape(metric: Metric) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    """Series of a family without what depends on the installation: model, sizes and versions."""
    own = {"model_name"} if metric.name != "vllm:cache_config_info" else set(metric.samples[0].labels)
    return {
        (sample.name, tuple(sorted((k, "" if k in own else v) for k, v in sample.labels.items())))
        for sample in metric.samples
    }


async def test_it_has_every_family_of_the_real_idle_page(worker: LiveWorker) -> None:
    real = families((FIXTURES / "metrics_idle.txt").read_text())
    ours = await page(worker)
    assert list(ours) == list(real)
    for name, family in real.items():
        assert (ours[name].type, ours[name].documentation) == (family.type, family.documentation), name
        if name.startswith(("vllm:", "http_")):
            assert shape(ours[name]) == shape(family), name


@pytest.mark.parametrize("name", ["metrics_after_load.txt", "metrics_dp2.txt"])
async def test_it_has_the_labels_of_the_real_loaded_pages(worker: LiveWorker, name: str) -> None:
    await worker.chat("hello")
    ours = await page(worker)
    for family_name, family in families((FIXTURES / name).read_text()).items():
        labels = {frozenset(sample.labels) - {"le"} for sample in family.samples}
        assert {frozenset(sample.labels) - {"le"} for sample in ours[family_name].samples} == labels, family_name


async def test_it_counts_tokens_queried_hit_and_computed(worker: LiveWorker) -> None:
    text = "count the tokens of this prompt, please, and keep them in the cache " * 4
    prompt_tokens = (await worker.chat(text)).json()["usage"]["prompt_tokens"]
    cached_tokens = await worker.cached_tokens(text)
    found = await page(worker)
    assert cached_tokens > 0
    assert value(found, "vllm:prefix_cache_queries_total") == 2 * prompt_tokens
    assert value(found, "vllm:prefix_cache_hits_total") == cached_tokens
    assert value(found, "vllm:prompt_tokens_total") == 2 * prompt_tokens
    by_source = "vllm:prompt_tokens_by_source_total"
    assert value(found, by_source, source="local_compute") == 2 * prompt_tokens - cached_tokens
    assert value(found, by_source, source="local_cache_hit") == cached_tokens
    assert value(found, "vllm:prompt_tokens_cached_by_source_total", source="device") == cached_tokens
    assert value(found, "vllm:request_success_total", finished_reason="length") == 2
    assert value(found, "vllm:generation_tokens_total") == 8
    assert value(found, "vllm:time_to_first_token_seconds_count") == 2
    assert value(found, "vllm:e2e_request_latency_seconds_count") == 2
    assert value(found, "http_requests_total", handler="/v1/chat/completions", status="2xx") == 2


async def test_it_filters_by_name(worker: LiveWorker) -> None:
    query = "/metrics/?name[]=vllm:num_requests_running&name[]=vllm:time_to_first_token_seconds_sum"
    found = await page(worker, query)
    assert set(found) == {"vllm:num_requests_running", "vllm:time_to_first_token_seconds"}


async def test_it_describes_its_cache_in_strings(worker: LiveWorker) -> None:
    labels = (await page(worker))["vllm:cache_config_info"].samples[0].labels
    assert (labels["block_size"], labels["num_gpu_blocks"]) == ("16", "10240")
    assert labels["prefix_caching_hash_algo"] == "sha256"
    assert "model_name" not in labels


async def test_it_shows_a_gpu_as_the_dcgm_exporter_does(worker: LiveWorker) -> None:
    found = await page(worker, "/dcgm/metrics")
    for name in ("GPU_UTIL", "FB_USED", "FB_FREE", "POWER_USAGE", "XID_ERRORS"):
        (sample,) = found[f"DCGM_FI_DEV_{name}"].samples
        assert sample.labels["gpu"] == "0" and sample.value >= 0
    assert value(found, "DCGM_FI_DEV_FB_USED") + value(found, "DCGM_FI_DEV_FB_FREE") == 81_559

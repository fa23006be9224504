"""The proof on real vLLM: reuse, isolation, figures that agree with the workers' own, failure, the official client."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.installation import ROOT, Installation, wait_until
from tests.vllm.conftest import REPLAY_ENDPOINTS, Tenancy, client_for, prompt_of
from tests.vllm.worker_counters import blocks_in_events, counters_of, increases

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]


def stream_once(client: openai.OpenAI, prompt: str) -> tuple[float, int, int]:
    """(TTFT in ms, prompt tokens, cached tokens) of one streamed chat completion."""
    began = time.perf_counter()
    ttft_ms = 0.0
    usage = None
    stream = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "system", "content": prompt}, {"role": "user", "content": "go on"}],
        max_tokens=4,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        if not ttft_ms and chunk.choices:
            ttft_ms = (time.perf_counter() - began) * 1e3
        usage = chunk.usage or usage
    assert usage is not None and usage.prompt_tokens_details is not None
    return ttft_ms, usage.prompt_tokens, int(usage.prompt_tokens_details.cached_tokens or 0)


def test_the_live_test_finds_both_workers_fit(fleet: list[dict[str, Any]]) -> None:
    for report in fleet:
        failed = [check for check in report["test_report"] if check["ok"] is not True]
        assert not failed, failed


def test_a_repeated_prompt_is_served_from_the_same_workers_cache(
    stack: Installation, tenancy: Tenancy, workers: tuple[str, ...]
) -> None:
    client = client_for(stack, tenancy.alice)
    stream_once(client, prompt_of(200, seed=1))  # connections and kernels are warm afterwards
    prompt = prompt_of(2000, seed=2)
    before = [counters_of(url) for url in workers]
    cold_ms, prompt_tokens, cold_cached = stream_once(client, prompt)
    middle = [counters_of(url) for url in workers]
    warm_ms, _, warm_cached = stream_once(client, prompt)
    after = [counters_of(url) for url in workers]

    def served(first: list[dict[str, float]], second: list[dict[str, float]]) -> list[int]:
        name = "vllm:time_to_first_token_seconds_count"
        return [i for i in range(len(workers)) if increases(first[i], second[i])[name] > 0]

    assert prompt_tokens >= 2000
    assert cold_cached == 0
    assert warm_cached >= prompt_tokens - 64, "all whole blocks but the last are reused"
    assert served(before, middle) == served(middle, after) and len(served(before, middle)) == 1
    assert warm_ms < cold_ms, f"hit {warm_ms:.0f} ms, miss {cold_ms:.0f} ms"
    print(f"TTFT cold {cold_ms:.0f} ms, cached {warm_ms:.0f} ms, {warm_cached} of {prompt_tokens} tokens")


def test_a_teammate_shares_the_cache_and_another_tenant_does_not(stack: Installation, tenancy: Tenancy) -> None:
    prompt = prompt_of(2000, seed=3)
    assert stream_once(client_for(stack, tenancy.alice), prompt)[2] == 0
    assert stream_once(client_for(stack, tenancy.bob), prompt)[2] > 1900
    assert stream_once(client_for(stack, tenancy.charlie), prompt)[2] == 0
    assert stream_once(client_for(stack, tenancy.charlie), prompt)[2] > 1900, "her own second request hits"


ROLLUP_SUMS = """
from django.db.models import Sum
from controlplane.telemetry.models import RequestRollup, WorkerRollup
r = RequestRollup.objects.filter(width_s=10, pool="tiny").aggregate(
    requests=Sum("requests"), prompt=Sum("prompt_tokens"), hit=Sum("hit_tokens"), predicted=Sum("predicted_hit_tokens"))
workers = {}
for n in ("w1", "w2"):
    workers[n] = WorkerRollup.objects.filter(width_s=10, worker=f"tiny/{n}").aggregate(
        queries=Sum("prefix_query_tokens"), hits=Sum("prefix_hit_tokens"), ttft=Sum("ttft_count"),
        generated=Sum("generation_tokens"), stored=Sum("stored_blocks"), removed=Sum("removed_blocks"),
        failed=Sum("polls_failed"))
result = {"requests": r, "workers": workers}
"""


def test_figures_agree_with_the_workers_own_counters(
    stack: Installation, tenancy: Tenancy, workers: tuple[str, ...]
) -> None:
    time.sleep(5)  # two polls: what came before this test is in the rollups
    before, rolled_before = [counters_of(url) for url in workers], stack.python(ROLLUP_SUMS)
    events_before = [blocks_in_events(endpoint) for endpoint in REPLAY_ENDPOINTS]
    client = client_for(stack, tenancy.alice)
    prompts = [prompt_of(1500, seed=100 + i) for i in range(6)]
    delivered = sum(stream_once(client, prompt)[2] for prompt in prompts * 2)
    # More distinct prefixes than two caches of 511 blocks hold: evictions must happen and be counted.
    delivered += sum(stream_once(client, prompt_of(4000, seed=200 + i))[2] for i in range(12))
    own = [increases(then, counters_of(url)) for then, url in zip(before, workers, strict=True)]
    events = [blocks_in_events(endpoint) for endpoint in REPLAY_ENDPOINTS]
    assert sum(o["vllm:kv_block_lifetime_seconds_count"] for o in own) > 0, "the load evicts"

    def rolled_up() -> tuple[int, list[dict[str, float]]]:
        """Delivered hit tokens as routers saw them, and each worker's increases as pollers and events saw them."""
        now, then = stack.python(ROLLUP_SUMS), rolled_before
        hit = now["requests"]["hit"] - then["requests"]["hit"]
        return hit, [{k: now["workers"][n][k] - then["workers"][n][k] for k in now["workers"][n]} for n in ("w1", "w2")]

    expected = [
        {
            "queries": o["vllm:prefix_cache_queries_total"],
            "hits": o["vllm:prefix_cache_hits_total"],
            "ttft": o["vllm:time_to_first_token_seconds_count"],
            "generated": o["vllm:generation_tokens_total"],
            "stored": now["stored"] - then["stored"],
            "removed": now["removed"] - then["removed"],
        }
        for o, then, now in zip(own, events_before, events, strict=True)
    ]

    def agree() -> bool:
        hit, workers_rolled = rolled_up()
        return hit == delivered and all(w[k] == e[k] for w, e in zip(workers_rolled, expected, strict=True) for k in e)

    with contextlib.suppress(AssertionError):
        wait_until(agree, within_s=20, what="polls, events and ingestion caught up", every_s=1)
    hit, workers_rolled = rolled_up()
    assert hit == delivered == sum(e["hits"] for e in expected)
    assert [{k: w[k] for k in e} for w, e in zip(workers_rolled, expected, strict=True)] == expected
    assert all(w["stored"] > 0 and w["failed"] == 0 for w in workers_rolled)
    for e, o in zip(expected, own, strict=True):
        # The worker's lifetime histogram also counts each request's last, partly filled block, which has no hash.
        evicted = o["vllm:kv_block_lifetime_seconds_count"]
        assert e["removed"] <= evicted <= e["removed"] + e["ttft"]


def test_the_dashboard_shows_the_workers_and_no_violation(stack: Installation, tenancy: Tenancy) -> None:
    shown = stack.python(
        "from controlplane.fleet.selectors import workers_table\n"
        "from controlplane.isolation.models import IsolationViolation\n"
        "rows = workers_table()\n"
        "result = {'workers': [r.worker_id for r in rows], 'resident': [r.resident_share for r in rows],"
        " 'violations': IsolationViolation.objects.count()}"
    )
    assert shown["workers"] == ["tiny/w1", "tiny/w2"]
    assert all(share is not None and share > 0 for share in shown["resident"])
    assert shown["violations"] == 0


def test_the_official_client_works(stack: Installation, tenancy: Tenancy) -> None:
    client = client_for(stack, tenancy.alice)
    chat = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hello"}], max_tokens=5, temperature=0
    )
    assert chat.choices[0].message.role == "assistant" and chat.usage.completion_tokens == 5
    text = client.completions.create(model="tiny", prompt="def range", max_tokens=5)
    assert text.usage.completion_tokens == 5
    pieces = [
        chunk.choices[0].text
        for chunk in client.completions.create(model="tiny", prompt="def range", max_tokens=5, stream=True)
    ]
    assert len(pieces) >= 5, "without include_usage every chunk has a choice"
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_the_official_client_sees_typed_errors(stack: Installation, tenancy: Tenancy) -> None:
    good = client_for(stack, tenancy.alice)
    with pytest.raises(openai.AuthenticationError):
        client_for(stack, "tm_000000000000_" + "A" * 43).models.list()
    with pytest.raises(openai.NotFoundError):
        good.completions.create(model="absent", prompt="x")
    with pytest.raises(openai.BadRequestError):
        good.completions.create(model="tiny", prompt=prompt_of(14_000, seed=9), max_tokens=1)
    with pytest.raises(openai.BadRequestError):
        good.chat.completions.create(model="tiny", messages="not a list")  # type: ignore[arg-type]


@pytest.fixture
def lab_whole_again() -> Iterator[None]:
    """Other files' tests need both workers."""
    yield
    subprocess.run(["docker/lab/lab.sh", "up", "2"], cwd=ROOT, check=True, capture_output=True, timeout=200)


@pytest.mark.usefixtures("lab_whole_again")
def test_a_killed_worker_is_ejected_and_the_next_request_succeeds(stack: Installation, tenancy: Tenancy) -> None:
    client = client_for(stack, tenancy.alice)
    lab = Path(os.environ.get("VLLM_LAB", Path.home() / ".cache/vllm-lab"))
    victim = int((lab / "run/w1.pid").read_text())
    os.killpg(os.getsid(victim), signal.SIGKILL)
    for number in range(8):
        answer = client.completions.create(model="tiny", prompt=prompt_of(300, seed=300 + number), max_tokens=2)
        assert answer.usage.completion_tokens == 2
    down = (
        "from controlplane.fleet.selectors import workers_table\n"
        "result = {r.worker_id: r.health for r in workers_table()}"
    )
    wait_until(
        lambda: stack.python(down)["tiny/w1"] == "down", within_s=20, what="the dashboard shows w1 as down", every_s=1
    )

"""NIXL on real workers: one pulls KV from the other when it is told to (docs/workers.md), and the router tells it to
(docs/routing.md)."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from router.http.fields import NEVER_FORWARDED
from tests.installation import Installation, Operator, wait_until
from tests.vllm.conftest import Tenancy, prompt_of
from tests.vllm.connectors import BLOCK_TOKENS, complete, offered, page_counters, text_of
from tests.vllm.mixed_traffic import Thread, ask
from tests.vllm.special_workers import nixl_pair
from tests.vllm.test_exact_mode import exact_workers, explained, matched, would_be

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

RUN = time.time_ns()
"""In every salt: workers that stay up hold the prompts of the run before."""
CROWD = 5
POOL = {
    "tokenizer": "model", "transfer": "nixl", "kv_bytes_per_token": 2048, "transfer_gib_per_s": 1.0,
    "transfer_setup_ms": 5.0, "spill_outstanding": 1,
}  # fmt: skip
"""A red line so low that a few answers under way make a worker one to avoid."""


@pytest.fixture(scope="module")
def workers() -> Iterator[tuple[str, ...]]:
    """In place of the two of `make test-vllm`."""
    with nixl_pair() as pair:
        yield pair


def test_a_worker_pulls_what_another_one_offers_and_counts_bytes_and_time(workers: tuple[str, ...]) -> None:
    first, second = workers
    computed, tokens, _ = complete(first, text_of(3), salt=f"one-{RUN}")
    params = offered(first, text_of(3), salt=f"one-{RUN}")
    assert (
        params["do_remote_prefill"] and params["remote_prefill_cached_tokens"] == tokens // BLOCK_TOKENS * BLOCK_TOKENS
    )
    before = page_counters(second)
    pulled, _, cached = complete(second, text_of(3), salt=f"one-{RUN}", kv_transfer_params=params)
    assert pulled == computed and cached >= (tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    counters = {name: value - before[name] for name, value in page_counters(second).items()}
    print(f"{counters['nixl_bytes']:,.0f} bytes in {counters['nixl_s'] * 1000:,.0f} ms")
    assert counters["nixl_bytes"] > 0 and counters["nixl_s"] > 0
    assert cached <= counters["source:external_kv_transfer"] <= tokens


def test_who_holds_the_params_gets_the_kv_whatever_the_salt(workers: tuple[str, ...]) -> None:
    """So the router forwards none of a client's (`NEVER_FORWARDED`)."""
    first, second = workers
    params = offered(first, text_of(4), salt=f"tenant-a-{RUN}")
    before = page_counters(second)["source:external_kv_transfer"]
    _, tokens, cached = complete(second, text_of(4), salt=f"tenant-b-{RUN}")
    assert (cached, page_counters(second)["source:external_kv_transfer"]) == (0, before)
    _, _, cached = complete(second, text_of(4), salt=f"tenant-c-{RUN}", kv_transfer_params=params)
    assert page_counters(second)["source:external_kv_transfer"] - before > tokens - 2 * BLOCK_TOKENS
    assert cached == 0, "its usage repeats what the offering worker had cached, not what it pulled"
    assert "kv_transfer_params" in NEVER_FORWARDED


@pytest.fixture(scope="module")
def client(stack: Installation, operator: Operator, tenancy: Tenancy) -> Iterator[httpx.Client]:
    operator.patch("pools/tiny", POOL)
    wait_until(lambda: exact_workers(stack) == {"tiny/w1", "tiny/w2"}, within_s=60, what="both workers are exact")
    with httpx.Client(base_url=stack.router, timeout=120, trust_env=False) as client:
        yield client


@contextlib.contextmanager
def crowded(url: str) -> Iterator[None]:
    """Long answers under way on a worker, which others than the router asked for."""
    over = threading.Event()

    def stream(number: int) -> None:
        body = {"model": "tiny", "prompt": f"{number} range", "max_tokens": 8000, "ignore_eos": True, "stream": True}
        with (
            contextlib.suppress(httpx.HTTPError),
            httpx.stream("POST", f"{url}/v1/completions", json=body | {"cache_salt": "crowd"}, timeout=120) as answer,
        ):
            for _ in answer.iter_lines():
                if over.is_set():
                    return

    threads = [threading.Thread(target=stream, args=(number,)) for number in range(CROWD)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(timeout=30)


def test_the_router_has_a_worker_pull_from_a_crowded_one(
    stack: Installation, tenancy: Tenancy, workers: tuple[str, ...], client: httpx.Client
) -> None:
    body = {"model": "tiny", "prompt": prompt_of(3000, seed=5), "max_tokens": 8, "temperature": 0, "stream": False}
    thread = Thread(tenancy.alice, "/v1/completions", body)
    first = ask(client, thread)
    holder = explained(stack, first)["worker"]
    others = {"tiny/w1": "tiny/w2", "tiny/w2": "tiny/w1"}
    urls = dict(zip(sorted(others), workers, strict=True))
    wait_until(lambda: matched(stack, thread)[holder] > 2000, within_s=5, what="it is known to hold the prompt")
    before = page_counters(urls[others[holder]])
    with crowded(urls[holder]):
        wait_until(
            lambda: would_be(stack, thread)["pulls_from"] == holder,
            within_s=60,
            what="the holder is seen to be crowded",
        )
        pulled = ask(client, thread)
    page = explained(stack, pulled)
    print(page["sentence"], f"ttft {page.get('ttft_ms')}", page.get("predicted_ttft_ms"))
    assert (page["worker"], page["pulls_from"], page["pull"]) == (others[holder], holder, "ok")
    assert pulled.text == first.text, "the same answer from KV that was pulled"
    assert pulled.cached_tokens == page["predicted_hit_tokens"] > 2000
    moved = {name: value - before.get(name, 0) for name, value in page_counters(urls[others[holder]]).items()}
    print(f"{moved['nixl_bytes']:,.0f} bytes in {moved['nixl_s'] * 1000:,.0f} ms")
    assert moved["nixl_bytes"] > 0 and moved["source:external_kv_transfer"] > 2000
    again = ask(client, thread)
    assert again.text == first.text and again.cached_tokens == explained(stack, again)["predicted_hit_tokens"] > 2000
    metrics = httpx.get(f"{stack.admin}/metrics", trust_env=False, timeout=10).text
    assert 'tidemark_router_pulls_total{result="fell_back"} 0.0' in metrics
    violations = (
        "from controlplane.isolation.models import IsolationViolation\nresult = IsolationViolation.objects.count()"
    )
    assert stack.python(violations) == 0

"""Exact mode on two real workers: what the router predicts is what they deliver, and a restart is forgotten at once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.installation import ROOT, Installation, Operator, wait_until
from tests.vllm.conftest import REPLAY_ENDPOINTS, Tenancy, prompt_of
from tests.vllm.mixed_traffic import SHARES, Answered, MixedTraffic, Thread, ask
from tests.vllm.worker_counters import blocks_in_events

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

REQUESTS = 300
SHARE_EQUAL_MIN = 0.99
FORGOTTEN_S = 1.0


@pytest.fixture(scope="module")
def exact_pool(operator: Operator, tenancy: Tenancy, stack: Installation) -> Iterator[None]:
    """The pool `tiny` in exact mode, and approximate again for whoever comes after."""
    operator.patch("pools/tiny", {"tokenizer": "model"})
    wait_until(lambda: exact_workers(stack) == {"tiny/w1", "tiny/w2"}, within_s=30, what="both workers are exact")
    yield
    operator.patch("pools/tiny", {"tokenizer": ""})


@pytest.fixture(scope="module")
def client(stack: Installation) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=stack.router, timeout=60, trust_env=False) as client:
        yield client


def admin(stack: Installation, path: str) -> Any:
    return httpx.get(f"{stack.admin}{path}", timeout=10, trust_env=False).json()


def exact_workers(stack: Installation) -> set[str]:
    pool = admin(stack, "/state")["exact"]["pools"].get("tiny")
    if pool is None or pool["status"] != "exact":
        return set()
    return {worker for worker, page in pool["workers"].items() if page["exact"]}


def explained(stack: Installation, answered: Answered) -> dict[str, Any]:
    return dict(admin(stack, f"/explain?request_id={answered.request_id}"))


def test_predicted_hits_are_the_delivered_ones(
    stack: Installation, tenancy: Tenancy, exact_pool: None, client: httpx.Client
) -> None:
    traffic = MixedTraffic([tenancy.alice, tenancy.charlie], random.Random(3))
    removed = sum(blocks_in_events(endpoint)["removed"] for endpoint in REPLAY_ENDPOINTS)
    wrong: list[tuple[str, int, int, int]] = []
    seen: Counter[str] = Counter()
    tokens = hits = 0
    for _ in range(REQUESTS):
        thread = traffic.next()
        answered = ask(client, thread)
        page = explained(stack, answered)
        predicted = page.get("predicted_hit_tokens", 0)
        seen[page["worker"]] += 1
        seen["exact"] += page.get("exact", True)
        seen["stream"] += thread.body["stream"]
        seen[thread.path] += 1
        tokens, hits = tokens + answered.prompt_tokens, hits + answered.cached_tokens
        if predicted != answered.cached_tokens:
            wrong.append((thread.path, answered.prompt_tokens, predicted, answered.cached_tokens))
    share = 1 - len(wrong) / REQUESTS
    evicted = sum(blocks_in_events(endpoint)["removed"] for endpoint in REPLAY_ENDPOINTS) - removed
    print(f"equal {share:.4f} of {REQUESTS}; hits {hits} of {tokens} tokens; evicted {evicted}; {seen}; wrong {wrong}")
    assert seen["exact"] == REQUESTS, "each was matched by the workers' own blocks"
    assert seen["tiny/w1"] > 30 and seen["tiny/w2"] > 30 and 0 < seen["stream"] < REQUESTS
    assert min(seen[path] for path in SHARES) > 20
    assert evicted > 300 and hits > tokens * 0.2
    assert share >= SHARE_EQUAL_MIN, wrong
    violations = stack.python(
        "from controlplane.isolation.models import IsolationViolation\nresult = IsolationViolation.objects.count()"
    )
    assert violations == 0


def test_a_restarted_worker_is_forgotten_at_once(
    stack: Installation, tenancy: Tenancy, exact_pool: None, client: httpx.Client
) -> None:
    messages = [{"role": "user", "content": prompt_of(1500, seed=77)}]
    thread = Thread(tenancy.alice, "/v1/chat/completions", {"model": "tiny", "messages": messages, "max_tokens": 2})
    thread.body["stream"] = False
    first, second = ask(client, thread), ask(client, thread)
    worker = explained(stack, second)["worker"]
    assert second.cached_tokens > 1000 and explained(stack, first)["worker"] == worker
    assert matched(stack, thread)[worker] == second.cached_tokens
    kill(worker)
    killed_at = time.monotonic()
    wait_until(
        lambda: matched(stack, thread)[worker] == 0, within_s=FORGOTTEN_S, what="its cache is forgotten", every_s=0.02
    )
    print(f"forgotten {(time.monotonic() - killed_at) * 1000:.0f} ms after the kill")
    assert ask(client, thread).cached_tokens == 0, "the other worker serves it, anew"
    subprocess.run(["docker/lab/lab.sh", "up", "2"], cwd=ROOT, check=True, capture_output=True, timeout=200)
    wait_until(lambda: worker in exact_workers(stack), within_s=60, what="the restarted worker is exact again")
    assert matched(stack, thread)[worker] == 0


def matched(stack: Installation, thread: Thread) -> dict[str, int]:
    """Tokens of the thread's prompt that each worker is thought to hold at this moment."""
    candidates = would_be(stack, thread)["candidates"]
    return {
        candidate["worker"]: candidate.get("matched_tokens", 0) - candidate.get("pulled_tokens", 0)
        for candidate in candidates
    }


def would_be(stack: Installation, thread: Thread) -> dict[str, Any]:
    """What would be decided for the thread's body at this moment."""
    headers = {"authorization": f"Bearer {thread.key}"}
    url = f"{stack.admin}/explain?path={thread.path}"
    return dict(httpx.post(url, content=json.dumps(thread.body), headers=headers, timeout=10, trust_env=False).json())


def kill(worker: str) -> None:
    lab = Path(os.environ.get("VLLM_LAB", Path.home() / ".cache/vllm-lab"))
    note = lab / f"run/{worker.removeprefix('tiny/')}.pid"
    os.killpg(os.getsid(int(note.read_text())), signal.SIGKILL)
    note.unlink()

"""A running router tells how far the reuse of real answers reached, and the cohort of each first token."""

from __future__ import annotations

from router.contract.cohorts import CACHE_CLASSES, cohort_of
from router.contract.telemetry import RequestRow
from tests.router.conftest import RunningRouter, chat
from tests.router.scripted_worker import DONE, ScriptedWorker, event, stream, usage_event

PROMPT = "The quick brown fox. " * 400
"""8,400 bytes: 16 whole blocks."""


async def _row(router: RunningRouter, worker: ScriptedWorker, text: str, *, prompt: int, cached: int) -> RequestRow:
    """What one answer with this usage adds."""
    usage = {"prompt_tokens": prompt, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": cached}}
    worker.script = stream(event("a"), usage_event(usage), DONE)
    router.runtime.telemetry._second.take()
    assert (await router.post(chat(text, stream=True))).status_code == 200
    rows, _, _ = router.runtime.telemetry._second.take()
    (row,) = (row for row in rows if row.hit_known)
    return row


async def test_what_never_came_before_is_the_workloads_and_what_came_is_available(
    router: RunningRouter, worker: ScriptedWorker
) -> None:
    first = await _row(router, worker, PROMPT, prompt=2000, cached=0)
    assert (first.repeated_tokens, first.best_hit_tokens, first.expected_hit_tokens) == (0, 0, 0)
    assert first.unjudged_tokens == 0
    again = await _row(router, worker, PROMPT, prompt=2000, cached=1984)
    assert 1900 < again.repeated_tokens <= 2000
    assert again.repeated_tokens >= again.best_hit_tokens >= again.expected_hit_tokens >= again.hit_tokens == 1984
    assert sum(again.hit_size.values()) == 1


async def test_what_the_worker_lost_unseen_is_a_stale_index(router: RunningRouter, worker: ScriptedWorker) -> None:
    await _row(router, worker, PROMPT, prompt=2000, cached=0)
    lost = await _row(router, worker, PROMPT, prompt=2000, cached=16)
    assert lost.expected_hit_tokens - lost.hit_tokens > 1800
    assert lost.best_hit_tokens == lost.expected_hit_tokens and not lost.routing_loss


async def test_first_tokens_stand_in_their_cohort(router: RunningRouter, worker: ScriptedWorker) -> None:
    row = await _row(router, worker, PROMPT, prompt=2000, cached=0)
    ((key, count),) = row.cohorts.items()
    length, load, cache, bucket = cohort_of(key)
    assert (length, load, CACHE_CLASSES[cache], count) == (1, 0, "miss", 1)
    assert row.ttft_miss == {bucket: 1}

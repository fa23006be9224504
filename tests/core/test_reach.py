"""How far a prompt's reuse reached: what came before, what the best worker holds, what the chosen one does."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.adapters.telemetry_reach import Reach
from router.contract.cohorts import (
    CACHE_CLASSES,
    HIT,
    KEY_MAX,
    MISS,
    PROMPT_TOKENS_FROM,
    REQUESTS_BESIDE_FROM,
    cohort_key,
    cohort_of,
)
from router.contract.histogram import INDEX_MAX, INDEX_MIN, bucket_of
from router.contract.ids import WorkerId
from router.contract.telemetry import RequestRow
from router.core.model import Decision
from tests.core.scene import POOL, Scene, prompt, snapshot


def decision(*, repeated: int, best: int, expected: int, prompt_tokens: int, spill: str = "") -> Decision:
    scene = Scene()
    made = Decision(scene.request(b"x" * 4096), WorkerId("p/w"), "http://w", "prefix", spill)
    made.repeated_tokens, made.best_hit_tokens = repeated, best
    made.predicted_hit_tokens, made.predicted_prompt_tokens = expected, prompt_tokens
    return made


def test_a_prompt_that_never_came_repeats_nothing() -> None:
    made = Scene().choose(prompt(1, 8192))
    assert (made.repeated_tokens, made.best_hit_tokens) == (0, 0)


def test_a_prompt_that_came_before_repeats_its_whole_blocks() -> None:
    scene = Scene()
    text = prompt(1, 8192)
    scene.serve(text)
    made = scene.choose(text)
    assert made.repeated_tokens == made.predicted_prompt_tokens == 2048
    assert made.best_hit_tokens == made.predicted_hit_tokens == 2047


def test_only_the_head_that_came_before_counts() -> None:
    scene = Scene()
    scene.serve(prompt(1, 8192))
    made = scene.choose(prompt(1, 8192)[:4096] + prompt(2, 4096))
    assert made.repeated_tokens == 1024


def test_what_another_tenant_sent_is_not_repeated() -> None:
    scene = Scene(snapshot(tenants=("alice", "charlie")))
    text = prompt(1, 8192)
    scene.serve(text, "charlie")
    assert scene.choose(text, "alice").repeated_tokens == 0


def test_what_no_worker_holds_any_more_still_came_before() -> None:
    scene = Scene()
    text = prompt(1, 8192)
    scene.table.worker_forgotten(scene.serve(text))
    made = scene.choose(text)
    assert (made.repeated_tokens, made.best_hit_tokens) == (2048, 0)


def test_the_best_holder_counts_though_it_may_not_serve() -> None:
    scene = Scene()
    text = prompt(1, 8192)
    holder = scene.serve(text)
    scene.set_state(int(holder.rsplit("w", 1)[1]), "drain")
    made = scene.choose(text)
    assert made.worker != holder
    assert (made.best_hit_tokens, made.predicted_hit_tokens) == (2047, 0)


@pytest.mark.parametrize("routing", ["round_robin", "least_outstanding", "ring"])
def test_rules_that_look_at_no_prefix_know_the_best_holder_too(routing: str) -> None:
    scene = Scene()
    pool = msgspec.structs.replace(scene.policy.pools[POOL], routing=routing)
    scene.publish(msgspec.structs.replace(scene.policy, pools={POOL: pool}))
    text = prompt(1, 8192)
    scene.serve(text)
    assert {scene.choose(text).best_hit_tokens for _ in range(4)} == {2047}


def test_a_retry_does_not_take_itself_for_a_repetition() -> None:
    scene = Scene()
    text = prompt(1, 8192)
    first = scene.start(text)
    again = scene.choose(text, exclude=frozenset({first.decision.worker}))
    assert again.repeated_tokens == -1


def test_a_prompt_without_text_is_not_judged() -> None:
    assert Scene().choose(None).repeated_tokens == -1


def test_a_decision_knows_what_was_under_way_beside_it() -> None:
    scene = Scene()
    first, second = scene.start_on(0, prompt(1, 4096)), scene.start_on(0, prompt(2, 4096))
    assert (first.decision.beside, second.decision.beside) == (0, 1)
    assert scene.start_on(1, prompt(3, 4096)).decision.beside == 0


tokens = st.integers(0, 200_000)


@given(
    prompt_tokens=st.integers(1, 200_000), cached=tokens, repeated=st.integers(-1, 200_000), best=tokens,
    expected=tokens, predicted=st.integers(0, 200_000), spill=st.sampled_from(("", "load", "watermark")),
)  # fmt: skip
def test_the_losses_are_never_negative_and_add_up(
    prompt_tokens: int, cached: int, repeated: int, best: int, expected: int, predicted: int, spill: str
) -> None:
    cached = min(cached, prompt_tokens)
    made = decision(repeated=repeated, best=best, expected=expected, prompt_tokens=predicted, spill=spill)
    row, reach = RequestRow(), Reach()
    reach.count(made, prompt_tokens=prompt_tokens, cached_tokens=cached)
    reach.put(row)
    assert prompt_tokens >= row.repeated_tokens >= row.best_hit_tokens >= row.expected_hit_tokens >= cached
    assert sum(row.routing_loss.values()) == row.best_hit_tokens - row.expected_hit_tokens
    assert set(row.routing_loss) <= {spill or "choice"}
    workload = prompt_tokens - row.unjudged_tokens - row.repeated_tokens
    stale = row.expected_hit_tokens - cached
    eviction = row.repeated_tokens - row.best_hit_tokens
    assert workload >= 0
    lost = workload + eviction + sum(row.routing_loss.values()) + stale + row.unjudged_tokens
    assert lost == prompt_tokens - cached


def test_estimates_are_put_in_proportion_to_what_the_worker_counted() -> None:
    row, reach = RequestRow(), Reach()
    made = decision(repeated=800, best=800, expected=400, prompt_tokens=1000)
    reach.count(made, prompt_tokens=2000, cached_tokens=700)
    reach.put(row)
    assert (row.repeated_tokens, row.best_hit_tokens, row.expected_hit_tokens) == (1600, 1600, 800)
    assert row.routing_loss == {"choice": 800}


def test_times_to_first_token_are_counted_by_cache_and_by_cohort() -> None:
    row, reach = RequestRow(), Reach()
    reach.count_ttft(row, ttft_ms=120.0, prompt_tokens=3000, cached_tokens=2000, beside=2)
    reach.count_ttft(row, ttft_ms=640.0, prompt_tokens=3000, cached_tokens=0, beside=0)
    reach.count_ttft(row, ttft_ms=90.0, prompt_tokens=None, cached_tokens=None, beside=0)
    reach.put(row)
    assert (sum(row.ttft_hit.values()), sum(row.ttft_miss.values()), sum(row.ttft_unknown.values())) == (1, 1, 1)
    found = {cohort_of(key): count for key, count in row.cohorts.items()}
    assert found == {(2, 1, HIT, bucket_of(120.0)): 1, (2, 0, MISS, bucket_of(640.0)): 1}


@given(
    prompt_tokens=st.integers(0, 10**7), beside=st.integers(0, 10**4),
    cache=st.integers(0, len(CACHE_CLASSES) - 1), bucket=st.integers(INDEX_MIN, INDEX_MAX),
)  # fmt: skip
def test_a_cohorts_key_can_be_read_back(prompt_tokens: int, beside: int, cache: int, bucket: int) -> None:
    key = cohort_key(prompt_tokens=prompt_tokens, beside=beside, cache=cache, bucket=bucket)
    length, load, cache_back, bucket_back = cohort_of(key)
    assert key <= KEY_MAX and (cache_back, bucket_back) == (cache, bucket)
    assert PROMPT_TOKENS_FROM[length] <= prompt_tokens and REQUESTS_BESIDE_FROM[load] <= beside
    assert length + 1 == len(PROMPT_TOKENS_FROM) or prompt_tokens < PROMPT_TOKENS_FROM[length + 1]
    assert load + 1 == len(REQUESTS_BESIDE_FROM) or beside < REQUESTS_BESIDE_FROM[load + 1]


@pytest.mark.parametrize("key", [-1, KEY_MAX + 1])
def test_what_is_no_key_is_refused(key: int) -> None:
    with pytest.raises(ValueError, match="no key"):
        cohort_of(key)

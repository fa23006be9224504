"""Refusals that keep promises: predicted TTFT beyond the limit, and a tenant's share of prefill (S11)."""

from __future__ import annotations

import msgspec
import pytest

from router.contract.ids import TenantId
from router.contract.snapshot import PolicySnapshot
from router.core.choice import RETRY_AFTER_SHED_S_MAX, SHED_FACTOR
from router.core.model import OverBudget, Shed
from tests.core.scene import Scene, prompt, snapshot


def busy_scene(*, queue_tokens: int, **namespace: object) -> Scene:
    """Two workers, each with a prompt of this many tokens ahead, at 10,000 tokens/s beside attention."""
    scene = Scene(snapshot(workers=2))
    for number in range(2):
        scene.start_on(number, prompt(500 + number, queue_tokens * 4), "charlie")
    scene.publish(snapshot(workers=2, namespace=namespace))
    return scene


def test_it_refuses_what_even_the_best_worker_would_answer_too_late() -> None:
    """6 s of prefill ahead (40,000 tokens weigh 60,000, half of it for attention) and a limit of 2 s."""
    scene = busy_scene(queue_tokens=40_000, shed_over_slo=True, ttft_slo_ms=2000.0)
    with pytest.raises(Shed) as caught:
        scene.choose(prompt(1, 4000))
    assert caught.value.status == 429
    assert caught.value.kind == "rate_limited"
    assert caught.value.retry_after_s == 5


def test_the_predicted_drain_is_the_time_to_retry() -> None:
    scene = busy_scene(queue_tokens=40_000, shed_over_slo=True, ttft_slo_ms=2000.0)
    with pytest.raises(Shed) as caught:
        scene.choose(prompt(1, 4000))
    scene.now += caught.value.retry_after_s
    assert scene.choose(prompt(1, 4000)).predicted_ttft_ms <= 2000 * SHED_FACTOR


def test_it_sheds_only_where_the_namespace_asks_for_it_and_has_a_limit() -> None:
    for policy in ({"ttft_slo_ms": 2000.0}, {"shed_over_slo": True}):
        scene = busy_scene(queue_tokens=60_000, **policy)
        assert scene.choose(prompt(1, 4000)).predicted_ttft_ms > 5000


def test_one_worker_in_time_is_enough() -> None:
    scene = Scene(snapshot(workers=2))
    scene.start_on(0, prompt(500, 400_000), "charlie")
    scene.publish(snapshot(workers=2, namespace={"shed_over_slo": True, "ttft_slo_ms": 2000.0}))
    assert scene.choose(prompt(1, 4000)).worker == "llama/w1"


def test_what_the_cache_saves_may_make_the_difference() -> None:
    scene, known = Scene(snapshot(workers=1)), prompt(1, 60_000)
    scene.serve(known)
    scene.start(prompt(2, 20_000), "charlie")
    scene.publish(snapshot(workers=1, namespace={"shed_over_slo": True, "ttft_slo_ms": 500.0}))
    assert scene.choose(known).predicted_ttft_ms < 600
    with pytest.raises(Shed):
        scene.choose(prompt(3, 4000) + known[:2000])


def test_a_prompt_that_no_waiting_would_make_timely_is_served() -> None:
    """Its own prefill is longer than the limit: to send it away and back helps nobody."""
    scene = Scene(snapshot(workers=2, namespace={"shed_over_slo": True, "ttft_slo_ms": 500.0}))
    assert scene.choose(prompt(1, 200_000)).predicted_ttft_ms == pytest.approx(8125, rel=0.01)


def test_a_retry_is_not_shed_and_the_wait_is_bounded() -> None:
    scene = busy_scene(queue_tokens=900_000, shed_over_slo=True, ttft_slo_ms=100.0)
    with pytest.raises(Shed) as caught:
        scene.choose(prompt(1, 4000))
    assert caught.value.retry_after_s == RETRY_AFTER_SHED_S_MAX
    tried = frozenset({next(iter(scene.policy.workers))})
    assert scene.choose(prompt(1, 4000), exclude=tried).reason == "retry"


def with_budget(tokens_per_s: float, burst: int | None = None) -> PolicySnapshot:
    policy = snapshot(workers=2)
    alice = TenantId("alice")
    grant = msgspec.structs.replace(
        policy.tenants[alice], prefill_tokens_per_s=tokens_per_s, prefill_burst_tokens=burst
    )
    return msgspec.structs.replace(policy, tenants={**policy.tenants, alice: grant})


def test_s11_a_tenant_over_its_share_waits_and_others_do_not() -> None:
    scene = Scene(with_budget(1000.0, 10_000))
    served = 0
    with pytest.raises(OverBudget) as caught:
        for seed in range(100):
            scene.finish(scene.start(prompt(seed, 16_000)), cached=0)
            served += 1
    assert served == 3
    assert caught.value.status == 429
    assert caught.value.retry_after_s == 3
    scene.choose(prompt(1, 16_000), "charlie")
    scene.now += caught.value.retry_after_s
    scene.choose(prompt(1, 16_000))


def test_s11_cached_tokens_are_free() -> None:
    scene, text = Scene(with_budget(1000.0, 10_000)), prompt(1, 16_000)
    for _ in range(100):
        scene.finish(scene.start(text), cached=3968)
    assert scene.choose(text).matched_blocks == 31


def test_s11_what_was_charged_too_much_is_given_back() -> None:
    scene = Scene(with_budget(1000.0, 10_000))
    for seed in range(50):
        scene.finish(scene.start(prompt(seed, 16_000)), cached=3990)
    scene.choose(prompt(99, 16_000))


def test_s11_a_snapshot_leaves_a_tenants_debt_as_it_is() -> None:
    scene = Scene(with_budget(1000.0, 5000))
    scene.start(prompt(1, 80_000))
    scene.publish(with_budget(1000.0, 5000))
    with pytest.raises(OverBudget):
        scene.choose(prompt(2, 4000))
    scene.publish(snapshot(workers=2))
    scene.choose(prompt(2, 4000))

"""Tenant priority weighs waiting against what the cache saves (S4.2)."""

from __future__ import annotations

import pytest

from tests.core.scene import Scene, prompt, snapshot, worker_id


def holder_is_busy(priority: int) -> Scene:
    """w0 holds the prompt, which saves 1,000 ms there, and queues a bit less than that; w1 is idle."""
    scene = Scene(snapshot(workers=2, namespace={"priority": priority}))
    scene.finish(scene.start_on(0, prompt(1, 40_000)))
    scene.start_on(0, prompt(2, 30_000), "charlie")
    return scene


@pytest.mark.parametrize(("priority", "expected"), [(-4, 0), (0, 0), (4, 1), (40, 1)])
def test_the_higher_the_priority_the_less_it_waits_for_a_cache(priority: int, expected: int) -> None:
    assert holder_is_busy(priority).choose(prompt(1, 40_000)).worker == worker_id(expected)


@pytest.mark.parametrize(("priority", "weight"), [(-4, 0.25), (-2, 0.5), (0, 1.0), (2, 2.0), (4, 4.0), (9, 4.0)])
def test_the_weight_is_shown_as_a_term_of_its_own(priority: int, weight: float) -> None:
    decision = holder_is_busy(priority).choose(prompt(1, 40_000))
    busy = next(each for each in decision.candidates if each.worker == worker_id(0))
    assert busy.queue_ms > 700
    assert busy.queue_ms + busy.priority_ms == pytest.approx(weight * busy.queue_ms)


def test_a_low_priority_leaves_the_idle_worker_to_others() -> None:
    low, normal = holder_is_busy(-4), holder_is_busy(0)
    for scene in (low, normal):
        scene.start_on(0, prompt(3, 16_000), "charlie")
    assert low.choose(prompt(1, 40_000)).worker == worker_id(0)
    assert normal.choose(prompt(1, 40_000)).worker == worker_id(1)

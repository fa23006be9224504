"""Pools too large to scan: the few workers that are scored contain one as good as the best of all."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.choice import HOLDERS_MAX, HOME_MARGIN_SHARE, LIGHTEST
from router.core.fleet import SCAN_WORKERS_MAX
from router.core.order import WaitOrder
from tests.core.scene import Scene, prompt, snapshot, worker_id

WORKERS = 100


def busy_scene(seed: int, under_way: int) -> tuple[Scene, random.Random]:
    scene, rng = Scene(snapshot(workers=WORKERS)), random.Random(seed)
    for number in range(under_way):
        reservation = scene.start_on(rng.randrange(WORKERS), prompt(rng.randrange(60), rng.choice((600, 6000, 60_000))))
        if rng.random() < 0.3:
            scene.table.first_byte(reservation, now=scene.now)
        elif rng.random() < 0.3:
            scene.finish(reservation)
        scene.now += 0.01 if number % 5 else 0.0
    return scene, rng


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("under_way", [0, 30, 200, 500])
def test_the_choice_is_within_the_margin_of_the_best_of_all(seed: int, under_way: int) -> None:
    scene, rng = busy_scene(seed, under_way)
    for _ in range(10):
        decision = scene.choose(prompt(rng.randrange(90), rng.choice((600, 6000, 60_000))))
        assert len(decision.candidates) == WORKERS
        chosen = next(each for each in decision.candidates if each.worker == decision.worker)
        best = max(each.net_ms for each in decision.candidates if not each.excluded)
        cold_ms = decision.predicted_prompt_tokens / 10.0
        assert chosen.net_ms >= best - max(2.0, HOME_MARGIN_SHARE * cold_ms)


def test_it_scores_a_few_workers_whatever_the_size() -> None:
    assert WORKERS > SCAN_WORKERS_MAX
    scene, _ = busy_scene(1, 100)
    request = scene.request(prompt(5, 6000))
    view = scene.table._view(request, scene.table._fleet.pools["llama"], scene.now)
    from router.core import choice

    choice.choose(view, None, explain=False)
    assert len(view.considered) <= HOLDERS_MAX + LIGHTEST + 1


def test_idle_workers_take_turns() -> None:
    scene = Scene(snapshot(workers=WORKERS))
    assert len({scene.serve(b"hello") for _ in range(2 * WORKERS)}) >= 0.9 * WORKERS
    assert len({scene.serve(prompt(seed, 3000)) for seed in range(3 * WORKERS)}) >= 0.8 * WORKERS


def test_drained_tried_and_full_workers_are_passed_over() -> None:
    scene = Scene(snapshot(workers=WORKERS, states=dict.fromkeys(range(0, 60), "drain")))
    scene.live(dict.fromkeys(range(60, 90), 0.95))
    tried = frozenset(worker_id(number) for number in range(90, 95))
    used = {scene.choose(prompt(seed, 3000), exclude=tried).worker for seed in range(80)}
    assert used <= {worker_id(number) for number in range(95, 100)}


@given(st.lists(st.tuples(st.integers(0, 19), st.floats(0, 100), st.floats(0, 10)), max_size=80))
def test_the_order_is_that_of_a_sort(puts: list[tuple[int, float, float]]) -> None:
    order, keys = WaitOrder(20), {place: (0.0, 0.0) for place in range(20)}
    for place, wait_ms, heat_ms in puts:
        order.put(place, wait_ms=wait_ms, heat_ms=heat_ms)
        keys[place] = (wait_ms, heat_ms)
    assert list(order.places()) == sorted(range(20), key=lambda place: (*keys[place], place))

"""Passive ejection and what health probes show: C57, A5, A7, A8, A9."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.ejection import EJECTION_S_MAX, Ejection
from router.core.model import NoWorker, Outcome
from tests.core.scene import Scene, prompt, worker_id


def fail(scene: Scene, number: int, times: int = 5) -> None:
    for _ in range(times):
        scene.table.worker_failed(worker_id(number), now=scene.now)


def state(scene: Scene, number: int) -> str:
    return scene.table.state(now=scene.now).worker_states[worker_id(number)]


def test_it_ejects_at_the_fifth_failure_in_a_row() -> None:
    scene = Scene()
    fail(scene, 0, 4)
    assert state(scene, 0) == "ready"
    scene.table.worker_ok(worker_id(0), now=scene.now)
    fail(scene, 0, 4)
    assert state(scene, 0) == "ready"
    fail(scene, 0, 1)
    assert state(scene, 0) == "ejected"


def test_an_ejected_worker_gets_nothing_and_comes_back_after_its_time() -> None:
    scene = Scene()
    held = prompt(1, 8000)
    home = scene.serve(held)
    fail(scene, int(home[-1]))
    decision = scene.choose(held)
    assert decision.worker != home
    assert (decision.spill, decision.preferred) == ("breaker", home)
    scene.now += 31
    assert scene.choose(held).worker == home


def test_each_ejection_is_longer_up_to_a_limit() -> None:
    health, now, lengths = Ejection(), 0.0, []
    for _ in range(4):
        health.failed(now=now)
    for _ in range(14):
        health.failed(now=now)
        lengths.append(health.until - now)
        now = health.until
    assert lengths[:4] == [30, 60, 90, 120]
    assert lengths[-1] == EJECTION_S_MAX


def test_long_health_forgives() -> None:
    health = Ejection()
    for _ in range(5):
        health.failed(now=0)
    health.succeeded(now=30 + 300)
    for _ in range(5):
        health.failed(now=400)
    assert health.until == 430


def test_c57_client_errors_eject_nobody() -> None:
    scene = Scene()
    for seed in range(50):
        reservation = scene.start_on(0, prompt(seed, 2000))
        outcome = Outcome(False, error="bad_request", status=400)
        scene.table.first_byte(reservation, now=scene.now)
        scene.table.release(reservation, outcome, now=scene.now)
    assert state(scene, 0) == "ready"


def test_a9_when_most_are_ejected_ejection_is_ignored() -> None:
    scene = Scene()
    for number in range(2):
        fail(scene, number)
    assert {scene.serve(prompt(seed, 3000)) for seed in range(30)} <= {worker_id(2), worker_id(3)}
    assert scene.table.state(now=scene.now).panicking_pools == []
    fail(scene, 2)
    assert scene.table.state(now=scene.now).panicking_pools == ["llama"]
    assert len({scene.serve(prompt(seed, 3000)) for seed in range(100, 160)}) == 4


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 100)), max_size=80))
def test_an_ejection_never_exceeds_the_limit(events: list[tuple[bool, float]]) -> None:
    health, now = Ejection(), 0.0
    for failed, pause in events:
        now += pause
        (health.failed if failed else health.succeeded)(now=now)
        assert health.until - now <= EJECTION_S_MAX


def test_a_worker_that_is_down_gets_nothing_until_it_answers_whatever_panic_says() -> None:
    scene = Scene()
    held = prompt(1, 8000)
    home = scene.serve(held)
    assert scene.table.worker_probed(home, "down")
    decision = scene.choose(held)
    assert (decision.spill, decision.preferred) == ("breaker", home) and decision.worker != home
    for number in range(4):
        scene.table.worker_probed(worker_id(number), "down")
    assert scene.table.state(now=scene.now).panicking_pools == ["llama"]
    with pytest.raises(NoWorker):
        scene.choose(held)
    assert not scene.table.worker_probed(home, "up")
    assert scene.choose(held).worker == home
    assert scene.table.state(now=scene.now).panicking_pools == ["llama"]


def test_silent_workers_get_nothing_while_another_answers_and_are_tried_when_none_does() -> None:
    scene = Scene()
    assert [scene.table.worker_probed(worker_id(number), "silent") for number in range(3)] == [True] * 3
    assert {scene.serve(prompt(seed, 3000)) for seed in range(20)} == {worker_id(3)}
    assert not scene.table.worker_probed(worker_id(3), "silent")
    assert len({scene.serve(prompt(seed, 3000)) for seed in range(100, 160)}) == 4
    scene.table.worker_probed(worker_id(0), "down")
    assert worker_id(0) not in {scene.serve(prompt(seed, 3000)) for seed in range(200, 260)}


def test_what_probes_show_outlives_a_snapshot_and_a_drain() -> None:
    scene = Scene()
    scene.table.worker_probed(worker_id(0), "down")
    scene.publish(scene.policy)
    assert state(scene, 0) == "ejected"
    scene.set_state(0, "drain")
    assert state(scene, 0) == "drain"
    scene.set_state(0, "ready")
    assert state(scene, 0) == "ejected"

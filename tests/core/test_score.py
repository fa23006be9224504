"""What the score remembers of a worker is what it would find anew."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.contract.telemetry import Candidate
from router.core.model import Reservation
from tests.core.scene import Scene, prompt, snapshot, worker_id

STEPS = st.lists(st.sampled_from(("start", "first_byte", "finish", "poll", "wait")), min_size=5, max_size=30)


def candidates(scene: Scene, text: bytes) -> list[Candidate]:
    request = scene.request(text)
    return scene.table.choose(request, now=scene.now, explain=True).candidates


@settings(max_examples=40, deadline=None)
@given(STEPS, st.integers(0, 2**16))
def test_remembered_burdens_never_change_a_score(steps: list[str], seed: int) -> None:
    scene, waiting = Scene(snapshot(workers=3, capacity_tokens=20_000)), list[Reservation]()
    for number, step in enumerate(steps):
        if step == "start":
            waiting.append(scene.start(prompt(seed + number % 5, 3000)))
        elif step == "first_byte" and waiting:
            scene.table.first_byte(waiting[-1], now=scene.now)
        elif step == "finish" and waiting:
            scene.finish(waiting.pop(0), cached=0, ttft_s=0.05)
        elif step == "poll":
            scene.live({0: 0.5, 1: 0.2})
        else:
            scene.now += 0.1
        text = prompt(seed, 3000)
        remembered = candidates(scene, text)
        for worker in scene.table._fleet.workers.values():
            worker.burden = None
        assert candidates(scene, text) == remembered


def test_the_wait_is_the_ledgers_remaining_tokens_at_the_workers_rate() -> None:
    scene = Scene(snapshot(workers=1))
    scene.start(prompt(1, 40_000))
    for after_s in (0.0, 0.2, 5.0):
        scene.now += after_s
        worker = next(iter(scene.table._fleet.workers.values()))
        rate = worker.rate.tokens_per_s
        remaining = worker.load.remaining_tokens(tokens_per_s=rate, now=scene.now)
        assert abs(candidates(scene, prompt(2, 3000))[0].queue_ms - remaining / rate * 1000) < 1e-6


def busy_pool(*, requests_per_s: float = 4.0) -> Scene:
    """Four workers that were given short prompts in turn for two minutes and are idle now."""
    scene = Scene(snapshot(workers=4))
    for number in range(int(120 * requests_per_s)):
        scene.finish(scene.start_on(number % 4, prompt(number, 400)), cached=0)
        scene.now += 1 / requests_per_s
    return scene


def test_a_miss_is_charged_for_those_that_come_meanwhile() -> None:
    """1 request a second and worker, half of them bound to it; after two half-lives three quarters are known."""
    scene, idle = busy_pool(), Scene(snapshot(workers=4))
    text = prompt(9000, 4 * 31_200)
    busy = candidates(scene, text)[0]
    prefill_s = scene.choose(text).predicted_ttft_ms / 1000
    assert prefill_s == pytest.approx(4.34, rel=0.01)
    assert busy.pressure_ms / 1000 == pytest.approx(prefill_s * 0.75 * 0.5 * prefill_s / 2, rel=0.05)
    assert candidates(idle, text)[0].pressure_ms == 0


def test_what_waits_delays_those_that_come_before_it_begins_too() -> None:
    scene, text = busy_pool(), prompt(9000, 40_000)
    scene.start_on(0, prompt(9001, 80_000))
    waits, begins = candidates(scene, text)[:2]
    beside = 1 / 5 * (begins.saved_ms + scene.choose(text).predicted_ttft_ms)
    assert waits.queue_ms > 2000
    assert waits.pressure_ms - begins.pressure_ms > beside


def held_behind(scene: Scene, session_tokens: int, *, queue_s: float) -> Scene:
    """w0 holds a session, and has this much ahead of its next turn."""
    scene.finish(scene.start_on(0, prompt(9000, 4 * session_tokens)), cached=0)
    worker = scene.table._fleet.workers[worker_id(0)]
    rate = worker.rate.tokens_per_s
    worker.load.reserve(int(queue_s * rate), tokens_per_s=rate, now=scene.now)
    worker.burden = None
    return scene


@pytest.mark.parametrize(("session_tokens", "expected"), [(8_000, 1), (60_000, 0)])
def test_a_long_session_waits_where_a_short_one_moves(session_tokens: int, expected: int) -> None:
    """Eight seconds of waiting against 0.9 s of prefill, and against 10.5 s that would delay others as well."""
    scene = held_behind(busy_pool(), session_tokens, queue_s=8.0)
    decision = scene.choose(prompt(9000, 4 * session_tokens) + prompt(9001, 2000))
    assert (decision.worker == worker_id(0)) == (expected == 0)

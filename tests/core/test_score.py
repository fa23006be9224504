"""What the score remembers of a worker is what it would find anew."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from router.contract.telemetry import Candidate
from router.core.model import Reservation
from tests.core.scene import Scene, prompt, snapshot

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

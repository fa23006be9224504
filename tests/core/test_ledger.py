"""Load in flight: C31, C33."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router.core.ledger import Load
from router.core.model import Outcome
from tests.core.scene import Scene, prompt, worker_id

RATE = 1000.0


class LoadBalance(RuleBasedStateMachine):
    """Any interleaving of reservations, first bytes and releases leaves exact counts, and nothing at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.load, self.now = Load(), 0.0
        self.waiting: list[int] = []
        self.decoding: list[int] = []

    @rule(tokens=st.integers(1, 10_000), pause=st.floats(0, 5))
    def reserve(self, tokens: int, pause: float) -> None:
        self.now += pause
        self.load.reserve(tokens, tokens_per_s=RATE, now=self.now)
        self.waiting.append(tokens)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), pause=st.floats(0, 5))
    def first_byte(self, data: st.DataObject, pause: float) -> None:
        self.now += pause
        tokens = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        self.load.first_byte(tokens, tokens_per_s=RATE, now=self.now)
        self.decoding.append(tokens)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        tokens = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        self.load.release(tokens, tokens_per_s=RATE, now=self.now, decoding=False)

    @precondition(lambda self: self.decoding)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        tokens = self.decoding.pop(data.draw(st.integers(0, len(self.decoding) - 1)))
        self.load.release(tokens, tokens_per_s=RATE, now=self.now, decoding=True)

    @invariant()
    def counts_are_exact(self) -> None:
        assert self.load.outstanding == len(self.waiting) + len(self.decoding)
        assert self.load.decoding == len(self.decoding)
        assert self.load.pending_tokens == sum(self.waiting)
        remaining = self.load.remaining_tokens(tokens_per_s=RATE, now=self.now)
        assert 0.25 * sum(self.waiting) - 1e-6 <= remaining <= sum(self.waiting) + 1e-6


TestLoadBalance = LoadBalance.TestCase


def test_predicted_work_shrinks_with_time_but_never_below_a_quarter() -> None:
    load = Load()
    load.reserve(2000, tokens_per_s=RATE, now=0.0)
    assert load.remaining_tokens(tokens_per_s=RATE, now=0.5) == 1500
    assert load.remaining_tokens(tokens_per_s=RATE, now=100.0) == 500


def test_time_without_work_is_no_progress() -> None:
    load = Load()
    load.reserve(1000, tokens_per_s=RATE, now=0.0)
    load.first_byte(1000, tokens_per_s=RATE, now=1.0)
    load.reserve(4000, tokens_per_s=RATE, now=500.0)
    assert load.remaining_tokens(tokens_per_s=RATE, now=500.0) == 4000


def test_c31_a_burst_at_one_moment_does_not_pile_up() -> None:
    scene = Scene()
    used = [scene.start(prompt(number, 8000)).decision.worker for number in range(40)]
    assert max(used.count(worker_id(number)) for number in range(4)) <= 15


def test_c33_every_path_counts() -> None:
    scene = Scene()
    reservations = [
        scene.start(None),
        scene.start(b"short"),
        scene.start(prompt(1, 9000)),
        scene.start(None, session="s"),
    ]
    assert sum(scene.table.state(now=scene.now).worker_outstanding.values()) == 4
    for reservation in reservations:
        scene.finish(reservation)
    assert sum(scene.table.state(now=scene.now).worker_outstanding.values()) == 0


def test_a_second_release_and_a_late_first_byte_are_harmless() -> None:
    scene = Scene()
    reservation = scene.start(prompt(1, 9000))
    scene.table.release(reservation, Outcome(False, error="upstream_died"), now=scene.now)
    scene.table.first_byte(reservation, now=scene.now)
    scene.table.release(reservation, Outcome(True), now=scene.now)
    assert scene.table.state(now=scene.now).worker_outstanding == dict.fromkeys(scene.policy.workers, 0)


def test_a_release_after_the_worker_was_replaced_does_not_touch_its_successor() -> None:
    scene = Scene()
    reservation = scene.start_on(0, prompt(1, 9000))
    policy = scene.policy
    scene.publish(type(policy)(policy.tenants, policy.keys, policy.namespaces, policy.pools, {}))
    scene.publish(policy)
    scene.finish(reservation)
    assert scene.table.state(now=scene.now).worker_outstanding == dict.fromkeys(scene.policy.workers, 0)
    assert scene.table._fleet.pools["llama"].outstanding == 0


@given(st.lists(st.booleans(), max_size=60))
def test_the_pool_total_is_the_sum_of_its_workers(finishes: list[bool]) -> None:
    scene = Scene()
    under_way = []
    for number, finish in enumerate(finishes):
        if finish and under_way:
            scene.finish(under_way.pop(number % len(under_way)))
        else:
            under_way.append(scene.start(prompt(number % 7, 2000)))
    pool = scene.table._fleet.pools["llama"]
    assert pool.outstanding == len(under_way) == sum(worker.load.outstanding for worker in pool.workers)

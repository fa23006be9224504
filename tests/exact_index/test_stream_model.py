"""Any interleaving of losses, repeats, swaps, restarts, cut-off replays: exact is claimed only for exact content."""

from __future__ import annotations

from collections import deque

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router.core.exact.block_index import BlockIndex, Tier
from router.core.exact.event_stream import EventStream
from tests.exact_index.naive import CLEARED, HOLDER, NaiveWorker, content_of, removed, stored

UNIVERSE = range(12)
blocks = st.lists(st.sampled_from(UNIVERSE), min_size=1, max_size=4)
tiers = st.sampled_from(Tier)


class FollowedWorker(RuleBasedStateMachine):
    """The network keeps what the worker published until a rule delivers, drops, repeats or swaps it."""

    def __init__(self) -> None:
        super().__init__()
        self.worker = NaiveWorker(buffer_steps=6)
        self.index = BlockIndex(bytes_max=1 << 16)
        self.stream = EventStream(self.index, HOLDER)
        self.network: deque[tuple[int, bytes]] = deque()
        self.now = 0.0
        self.stream.connect()

    # the worker

    @rule(hashes=blocks, tier=tiers)
    def store(self, hashes, tier) -> None:
        self.network.append(self.worker.publish(stored(hashes, tier)))

    @precondition(lambda self: self.worker.content)
    @rule(data=st.data())
    def evict(self, data) -> None:
        tier, block = data.draw(st.sampled_from(sorted(self.worker.content)))
        self.network.append(self.worker.publish(removed([block], tier)))

    @rule(hashes=blocks)
    def clear_and_store(self, hashes) -> None:
        self.network.append(self.worker.publish(CLEARED, stored(hashes)))

    @rule(lost=st.booleans(), published=st.lists(blocks, max_size=8))
    def restart(self, lost, published) -> None:
        """The connection breaks; what was under way may still have arrived. The new life publishes while unseen."""
        if not lost:
            self._deliver_all()
        self.network.clear()
        self.stream.disconnect()
        self.worker.restart()
        for hashes in published:
            self.worker.publish(stored(hashes))
        self.stream.connect()

    # the network

    @precondition(lambda self: self.network)
    @rule()
    def deliver(self) -> None:
        self.stream.receive(*self.network.popleft(), now=self.now)
        self._work()

    @precondition(lambda self: self.network)
    @rule()
    def drop(self) -> None:
        self.network.popleft()

    @precondition(lambda self: self.network)
    @rule()
    def repeat(self) -> None:
        self.network.appendleft(self.network[0])

    @precondition(lambda self: len(self.network) > 1)
    @rule()
    def swap(self) -> None:
        first, second = self.network.popleft(), self.network.popleft()
        self.network.extendleft((first, second))

    @rule()
    def reconnect(self) -> None:
        self.network.clear()
        self.stream.disconnect()
        self.stream.connect()

    # replays

    @precondition(lambda self: self.stream.ask is not None)
    @rule(cut_after=st.none() | st.integers(0, 4))
    def answer(self, cut_after) -> None:
        self._answer(cut_after)

    def _answer(self, cut_after: int | None) -> None:
        ask = self.stream.ask
        messages = self.worker.replay(ask.start)
        for seq, payload in messages[:cut_after]:
            self.stream.replay_receive(ask, seq, payload)
            self._work()
        if cut_after is None:
            self.stream.replay_end(ask)
        else:
            self.stream.replay_fail(ask)
        self._work()

    # the rest of the world

    @rule(seconds=st.floats(0, 100))
    def time_passes(self, seconds) -> None:
        self.now += seconds
        self.stream.tick(now=self.now)

    @rule()
    def revoke(self) -> None:
        self.stream.revoke()

    def _work(self) -> None:
        while self.stream.step():
            pass

    def _deliver_all(self) -> None:
        while self.network:
            self.stream.receive(*self.network.popleft(), now=self.now)
            self._work()

    def _answer_all(self) -> None:
        for _ in range(10):
            if self.stream.ask is not None:
                self._answer(None)

    @invariant()
    def exact_means_exactly_a_state_that_the_cache_had(self) -> None:
        if not self.stream.exact:
            assert self.index.matches(list(UNIVERSE), now=self.now) == {}
            return
        held = content_of(self.index, HOLDER, UNIVERSE)
        applied = self.stream._next
        states = [life[applied] for life in self.worker.lives if len(life) > applied]
        assert held in [set(state) for state in states]
        if not self.network and applied == len(self.worker.batches):
            assert held == set(self.worker.content)

    def teardown(self) -> None:
        """With a connection, answers, and a clear at last, every story ends in the truth."""
        self.stream.disconnect()
        self.network.clear()
        self.stream.connect()
        self.worker.buffer_steps = 1000
        for events in ([stored([3])], [CLEARED, stored([1, 2])], [removed([2])]):
            self._answer_all()
            self.network.append(self.worker.publish(*events))
            self._deliver_all()
        self._answer_all()
        self.stream.tick(now=self.now)
        assert self.stream.exact, (self.stream.state, self.stream.reason)
        assert content_of(self.index, HOLDER, UNIVERSE) == set(self.worker.content)


TestFollowedWorker = FollowedWorker.TestCase
TestFollowedWorker.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)

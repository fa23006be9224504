"""Conversations between a worker's publisher, a lossy network and the stream that follows it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from router.contract.ids import WorkerId
from router.core.exact.block_index import BlockIndex, Holder, Match, Resident
from router.core.exact.event_stream import ASKS_MAX, LEASE_S, PROBE_S, RETRY_S, EventStream
from router.core.exact.silence import SILENT_S
from tests.exact_index.naive import CLEARED, HOLDER, NaiveWorker, batch, removed, stored

OTHER = Holder(WorkerId("p/w2"))


class Story:
    """One worker and one stream; time stands still unless a test says otherwise."""

    def __init__(self, *, buffer_steps: int = 100, connect: bool = True, **settings: Any) -> None:
        self.index = BlockIndex(bytes_max=1 << 24)
        self.stream = EventStream(self.index, HOLDER, **settings)
        self.worker = NaiveWorker(buffer_steps=buffer_steps)
        self.now = 0.0
        if connect:
            self.stream.connect()
            self.answer()

    def work(self) -> None:
        while self.stream.step():
            pass
        self.stream.tick(now=self.now)

    def receive(self, *messages: tuple[int, bytes]) -> None:
        for seq, payload in messages:
            self.stream.receive(seq, payload, now=self.now)
        self.work()

    def says(self, *events: dict[str, Any]) -> None:
        self.receive(self.worker.publish(*events))

    def answer(self, messages: Iterable[tuple[int, bytes]] | None = None) -> None:
        """Answer every replay that is asked for."""
        for _ in range(10):
            ask = self.stream.ask
            if ask is None:
                return
            for seq, payload in self.worker.replay(ask.start) if messages is None else messages:
                self.stream.replay_receive(ask, seq, payload)
                self.work()
            self.stream.replay_end(ask)
            self.work()

    def fail(self) -> None:
        assert self.stream.ask is not None
        self.stream.replay_fail(self.stream.ask)
        self.work()

    def has(self, *blocks: int) -> int:
        return self.index.matches(blocks, now=self.now).get(HOLDER, Match(0)).blocks


def test_it_is_exact_after_a_replay_of_nothing_and_follows_what_comes() -> None:
    story = Story()
    assert (story.stream.state, story.stream.exact) == ("live", True)
    story.says(stored([1, 2, 3]))
    story.says(removed([3]))
    assert story.has(1, 2, 3) == 2
    assert story.stream.counts.stored == 3 and story.stream.counts.removed == 1


def test_a_restart_at_seq_0_without_a_clear_drops_the_workers_entries_c1_a12() -> None:
    story = Story()
    story.says(stored([1, 2]))
    story.says(stored([3]))
    story.worker.restart()
    story.says(stored([9]))
    assert (story.has(1), story.has(9), story.stream.exact) == (0, 1, True)
    assert story.stream.counts.restarts == 1


def test_a_restart_whose_first_batches_were_missed_is_rebuilt_by_replay_c1() -> None:
    story = Story()
    for block in range(5):
        story.says(stored([block]))
    story.worker.restart()
    story.worker.publish(stored([10]))
    story.says(stored([11]))
    assert story.has(0) == 0 and not story.stream.exact, "wiped before the replay is there"
    story.answer()
    assert (story.has(10, 11), story.has(0), story.stream.exact) == (2, 0, True)


def test_a_lost_removal_is_found_by_its_number_and_asked_for_c3() -> None:
    story = Story()
    story.says(stored([1, 2]))
    story.worker.publish(removed([2]))  # lost
    story.says(stored([3]))
    assert not story.stream.exact and story.has(1) == 0, "not used while a batch is missing"
    story.answer()
    assert story.has(1, 2) == 1 and story.has(3) == 1


def test_removals_that_are_never_announced_end_in_more_blocks_than_the_worker_has_c3() -> None:
    story = Story(capacity_blocks=4)
    story.says(stored([1, 2, 3, 4]))
    assert story.stream.exact
    story.says(stored([5]))
    assert (story.stream.state, story.stream.reason, story.has(1)) == ("degraded", "over_capacity", 0)


def test_all_blocks_cleared_empties_the_worker_only_c5() -> None:
    story = Story()
    story.index.add(OTHER)
    story.index.store(OTHER, 0, [1])
    story.index.renew(OTHER, until=100)
    story.says(stored([1, 2]))
    story.says(CLEARED, stored([5]))
    assert (story.has(1), story.has(5), story.stream.exact) == (0, 1, True)
    assert OTHER in story.index.matches([1], now=0)


def test_a_gap_asks_for_the_missing_range_and_wipes_nothing_c7() -> None:
    story = Story()
    for block in range(10):
        story.says(stored([block]))
    story.worker.publish(stored([10]))
    story.worker.publish(stored([11]))
    story.says(stored([12]))
    assert story.stream.ask is not None and story.stream.ask.start == 9, "the last known batch proves the same life"
    assert story.index.resident(HOLDER.worker) == Resident(10, 0, 0)
    story.says(stored([13]))
    story.answer()
    assert story.index.resident(HOLDER.worker) == Resident(14, 0, 0)
    assert story.stream.exact and story.stream.counts.gaps == 1


def test_a_first_number_above_0_is_a_gap_c9() -> None:
    story = Story(connect=False)
    story.stream.connected = True
    story.worker.publish(stored([1]))
    story.says(stored([2]))
    assert story.stream.ask is not None and story.stream.ask.start == 0
    assert not story.stream.exact
    story.answer()
    assert story.has(1) == story.has(2) == 1


def test_a_router_that_starts_late_knows_nothing_before_the_replay_and_all_after_it_c11() -> None:
    worker = NaiveWorker(buffer_steps=100)
    for block in range(20):
        worker.publish(stored([block]))
    story = Story(connect=False)
    story.worker = worker
    assert story.stream.state == "down" and not story.index.is_exact(HOLDER.worker, now=0)
    story.stream.connect()
    assert story.stream.state == "rebuilding" and not story.index.is_exact(HOLDER.worker, now=0)
    story.answer()
    assert story.index.is_exact(HOLDER.worker, now=0)
    assert story.index.resident(HOLDER.worker).device == 20


def test_a_worker_that_restarted_while_unseen_gets_no_credit_for_its_past_c11() -> None:
    story = Story()
    for block in range(5):
        story.says(stored([block]))
    story.stream.disconnect()
    assert story.has(0) == 0 and story.stream.state == "down"
    story.worker.restart()
    for block in range(50, 60):
        story.worker.publish(stored([block]))
    story.stream.connect()
    story.answer()
    assert (story.has(0), story.has(50), story.stream.exact) == (0, 1, True)


def test_a_repeated_batch_is_ignored_c13() -> None:
    story = Story()
    first = story.worker.publish(stored([1]))
    second = story.worker.publish(stored([1]), removed([1]))
    story.receive(first, first, second, first, second)
    assert story.has(1) == 1 and story.stream.counts.duplicates == 3
    story.says(removed([1]))
    assert story.has(1) == 0 and story.stream.exact


def test_a_worker_that_computes_without_a_word_is_silent_c15() -> None:
    story = Story()
    story.says(stored([1]))
    story.stream.note_answer(computed_tokens=5000, sent_at=-1.0, now=0.0)
    story.now = SILENT_S + 1
    story.work()
    assert story.stream.state == "live", "that request was sent before the last batch, which may be its own"
    story.stream.note_answer(computed_tokens=5000, sent_at=1.0, now=story.now)
    story.now += SILENT_S
    story.work()
    assert (story.stream.state, story.stream.exact, story.has(1)) == ("silent", False, 0)
    story.says(stored([2]))
    assert story.stream.state == "live" and story.has(1) == 1


def test_fully_cached_prompts_do_not_make_a_worker_silent_c15() -> None:
    story = Story()
    for _ in range(100):
        story.stream.note_answer(computed_tokens=5, sent_at=1.0, now=1.0)
    story.now = 100.0
    story.work()
    assert story.stream.state == "live"


def test_a_gap_beyond_the_workers_buffer_is_never_exact_a12() -> None:
    story = Story(buffer_steps=3)
    story.says(stored([1]))
    for block in range(2, 12):
        story.worker.publish(stored([block]))
    story.says(stored([12]))
    story.answer()
    assert (story.stream.state, story.stream.reason) == ("degraded", "truncated")
    assert story.index.resident(HOLDER.worker) == Resident(0, 0, 0)
    story.says(stored([13]))
    assert story.has(13) == 0 and not story.index.is_exact(HOLDER.worker, now=0)


def test_a_degraded_stream_is_whole_again_after_a_clear_or_a_restart_a12() -> None:
    story = Story(buffer_steps=1)
    story.worker.publish(stored([1]))
    story.says(stored([1]))
    story.worker.publish(stored([2]))
    story.says(stored([3]))
    story.answer()
    assert story.stream.state == "degraded"
    story.says(CLEARED, stored([4]))
    assert story.stream.exact and story.has(4) == 1
    story.worker.publish(stored([5]))
    story.says(stored([6]))
    story.answer()
    assert story.stream.state == "degraded"
    story.worker.restart()
    story.says(stored([7]))
    assert story.stream.exact and story.has(7) == 1


def test_a_replay_that_never_comes_degrades_and_is_tried_again_later() -> None:
    story = Story()
    story.says(stored([1]))
    story.worker.publish(stored([2]))
    story.says(stored([3]))
    story.fail()
    assert (story.stream.state, story.stream.reason, story.has(1)) == ("degraded", "no_replay", 0)
    story.now = RETRY_S
    story.work()
    assert story.stream.ask is not None and story.stream.ask.start == 0
    story.answer()
    assert story.stream.exact and story.has(1) == story.has(2) == story.has(3) == 1


def test_it_does_not_ask_for_ever() -> None:
    story = Story()
    story.says(stored([1]))
    story.worker.publish(stored([2]))
    story.says(stored([3]))
    for _ in range(ASKS_MAX):
        assert story.stream.ask is not None
        story.stream.replay_receive(story.stream.ask, *story.worker.replay(0)[0])
        story.stream.replay_end(story.stream.ask)
        story.work()
    assert story.stream.ask is None
    assert (story.stream.state, story.stream.reason, story.stream.counts.lost_messages) == ("degraded", "lost", 1)


def test_without_a_replay_endpoint_only_a_worker_seen_from_its_start_is_exact() -> None:
    story = Story(replayable=False)
    assert (story.stream.state, story.stream.reason) == ("degraded", "no_replay")
    story.says(stored([1]))
    assert story.stream.exact and story.has(1) == 1
    story.worker.publish(stored([2]))
    story.says(stored([3]))
    assert (story.stream.state, story.has(1)) == ("degraded", 0)
    story.worker.restart()
    story.says(stored([4]))
    assert story.stream.exact and story.has(4) == 1


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "refused_event"),
        (b"\xff\x00 no msgpack", "refused_event"),
        (b"\x93" + b"\x91" * 5000, "refused_event"),
        (b"x" * (9 * 1024 * 1024), "refused_event"),
        (batch("no event"), "refused_event"),
        (batch(stored([-1])), "refused_event"),
        (batch(stored([b"x" * 31])), "refused_event"),
        (batch(stored([2**64 - 1], block_hashes=None)), "refused_event"),
        (batch(stored(list(range(1_000_000)))), "refused_event"),
        (batch({"type": "BlockTeleported", "block_hashes": [1]}), "unknown_event"),
        (batch({"type": "BlockTeleported"}, CLEARED), "unknown_event"),
        (batch(stored([1], block_size=32)), "block_size"),
        (batch(stored([1], block_size=0)), "block_size"),
        (batch(stored([1], group_idx=1)), "hybrid_cache"),
        (batch(removed([1], group_idx=2)), "hybrid_cache"),
        (batch(stored([1], kv_cache_spec_kind="sliding_window")), "hybrid_cache"),
    ],
)
def test_a_batch_that_is_not_understood_is_reported_and_ends_exactness(payload: bytes, reason: str) -> None:
    story = Story(block_size_tokens=16)
    story.says(stored([1]))
    story.receive((1, payload))
    assert (story.stream.state, story.stream.reason, story.has(1)) == ("degraded", reason, 0)
    counts = story.stream.counts
    assert (counts.refused_events > 0, counts.unknown_events > 0) == (reason[0] == "r", reason[0] == "u")
    story.receive((2, batch(CLEARED, stored([2]))))
    assert story.stream.exact and story.has(2) == 1


def test_whole_hashes_are_the_same_blocks_as_their_short_form() -> None:
    story = Story()
    whole = bytes(range(24)) + (77).to_bytes(8, "big")
    story.says(stored([whole]))  # type: ignore[list-item]
    assert story.has(77) == 1
    story.says(removed([whole]))  # type: ignore[list-item]
    assert story.has(77) == 0


def test_other_media_fill_other_tiers() -> None:
    story = Story()
    events = stored([1, 2]), stored([1, 2, 3], medium="CPU"), stored([4], medium="SOMETHING"), removed([2])
    story.receive((0, batch(*events)))
    assert story.index.matches([1, 2, 3, 4], now=0) == {HOLDER: Match(1, 2, 1)}


def test_a_large_batch_is_applied_in_short_steps() -> None:
    story = Story()
    story.receive(story.worker.publish(stored([7])))
    story.stream.receive(*story.worker.publish(stored(list(range(20_000)))), now=0)
    sizes = []
    while story.stream.step():
        sizes.append(story.index.resident(HOLDER.worker).device)
    assert len(sizes) > 5 and sizes[-1] == 20_000
    assert max(b - a for a, b in itertools.pairwise(sizes)) <= 4096


def test_a_lease_lasts_only_while_ticks_come() -> None:
    story = Story()
    story.says(stored([1]))
    assert story.index.is_exact(HOLDER.worker, now=LEASE_S - 0.1)
    assert not story.index.is_exact(HOLDER.worker, now=LEASE_S)


def test_forged_blocks_cost_the_worker_its_credit_a13() -> None:
    story = Story(block_size_tokens=16)
    story.says(stored(list(range(100))))
    for second in range(30):
        story.now = float(second)
        story.work()
        if story.has(*range(100)):
            story.stream.judge(predicted_tokens=1600, delivered_tokens=0, now=story.now)
    assert (story.stream.state, story.stream.reason, story.has(0)) == ("degraded", "credit", 0)
    assert not story.index.is_exact(HOLDER.worker, now=story.now)
    story.says(CLEARED, stored([1]))
    assert not story.stream.exact, "a forger's clear does not buy it back"


def test_lost_credit_comes_back_with_a_whole_replay_a13() -> None:
    story = Story(block_size_tokens=16)
    story.says(stored(list(range(10))))
    for _ in range(4):
        story.stream.judge(predicted_tokens=160, delivered_tokens=0, now=0.0)
    story.now = 299.0
    story.work()
    assert story.stream.ask is None
    story.now = 301.0
    story.work()
    story.answer()
    assert story.stream.exact and story.has(*range(10)) == 10


def test_nothing_of_a_revoked_worker_is_hit_until_it_restarts_or_clears() -> None:
    for rebirth in ("clear", "restart"):
        story = Story()
        story.says(CLEARED, stored([1]))
        story.stream.revoke()
        assert story.has(1) == 0 and not story.index.is_exact(HOLDER.worker, now=0)
        story.stream.connect()
        story.answer()
        assert (story.has(1), story.stream.reason) == (0, "revoked"), "the old clear is replayed, and is no new one"
        story.says(stored([2]))
        assert story.has(2) == 0
        if rebirth == "restart":
            story.worker.restart()
            story.stream.connect()
            story.answer()
        story.says(*([CLEARED] if rebirth == "clear" else []), stored([3]))
        assert story.has(3) == 1 and story.stream.exact


def test_a_restart_after_a_revocation_is_seen_even_if_no_batch_was_followed_before() -> None:
    story = Story(connect=False)
    story.stream.connect()
    story.says(stored([1]))
    story.says(stored([2]))
    story.stream.revoke()
    story.worker.restart()
    story.stream.connect()
    story.answer()
    story.says(stored([3]))
    assert story.stream.exact and story.has(3) == 1 and story.has(1) == 0


def test_salts_are_shown_only_when_asked_for_and_only_of_first_blocks() -> None:
    story = Story()
    seen: list[str] = []
    story.says(stored([1], extra_keys=[["early"]]))
    story.stream.watch_salts(seen.append)
    story.says(stored([2, 3], extra_keys=[["salt-a"], None]))
    story.says(stored([4], parent_block_hash=3, extra_keys=[["not a salt"]]))
    story.says(stored([5], lora_name="adapter", extra_keys=[["adapter", "salt-b"]]))
    story.says(stored([6], extra_keys="nonsense"))
    story.stream.watch_salts(None)
    story.says(stored([7], extra_keys=[["late"]]))
    assert seen == ["salt-a", "salt-b"]
    assert "salt-" not in repr(vars(story.stream)) and story.stream.exact


def test_a_flood_while_a_replay_is_awaited_is_bounded_and_heals() -> None:
    story = Story()
    everything = [(seq, batch(stored([seq]), ts=float(seq))) for seq in range(15_000)]
    story.receive(everything[0])
    for seq, payload in everything[2:]:
        story.stream.receive(seq, payload, now=0.0)
    story.work()
    assert len(story.stream._inbox) <= 10_000 and story.stream._inbox_bytes <= 32 * 1024 * 1024
    for _ in range(2):
        ask = story.stream.ask
        assert ask is not None
        for seq, payload in everything[ask.start :]:
            story.stream.replay_receive(ask, seq, payload)
            story.stream.step()
        story.stream.replay_end(ask)
        story.work()
        if story.stream.ask is None:
            break
    assert story.stream.exact and story.index.resident(HOLDER.worker).device == 15_000


def test_a_report_says_where_the_stream_stands() -> None:
    story = Story()
    story.says(stored([1, 2]))
    report = story.stream.report()
    assert (report.holder, report.state, report.reason, report.exact) == (HOLDER, "live", "", True)
    assert (report.resident, report.block_size_tokens, report.credit) == (Resident(2, 0, 0), 16, 1.0)
    assert msgspec.json.encode(report.counts)


def test_a_lost_last_batch_is_found_once_the_worker_is_quiet_a11() -> None:
    story = Story()
    story.says(stored([1]))
    story.worker.publish(stored([2]))  # lost, and nothing follows
    assert story.has(2) == 0
    story.now = PROBE_S
    story.work()
    assert story.stream.ask is not None and story.stream.state == "live" and story.has(1) == 1
    story.answer()
    assert story.has(2) == 1 and story.stream.exact
    story.now = 4.0
    story.work()
    assert story.stream.ask is None, "once for each quiet spell"


def test_an_unanswered_probe_costs_nothing() -> None:
    story = Story()
    story.says(stored([1]))
    story.now = PROBE_S
    story.work()
    story.fail()
    assert story.has(1) == 1 and story.stream.exact


def test_a_probe_finds_a_worker_that_restarted_unnoticed() -> None:
    story = Story()
    story.says(stored([1]))
    story.worker.restart()
    story.worker.publish(stored([2]))
    story.now = PROBE_S
    story.work()
    story.answer()
    assert (story.has(1), story.has(2), story.stream.exact) == (0, 1, True)

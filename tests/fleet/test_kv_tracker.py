"""Following a cache from its events: a model publisher with lives, gaps and replays, and recorded real events."""

from __future__ import annotations

import gzip
import random
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.fleet.kv_events import tracker as tracking
from controlplane.fleet.kv_events.messages import EventRefused, decode_batch, first_salt
from controlplane.fleet.kv_events.tracker import Ask, CacheTracker

RECORDED = Path(__file__).parent.parent / "fixtures" / "vllm" / "kv_events_trimmed.jsonl.gz"
encode = msgspec.msgpack.Encoder().encode


def batch(ts: float, *events: dict) -> bytes:
    return encode([ts, list(events), 0])


def stored(*hashes: int | bytes, **more: object) -> dict:
    secret = {"token_ids": [1, 2, 3], "extra_keys": [["the-salt"]], "parent_block_hash": None, "block_size": 16}
    return {"type": "BlockStored", "block_hashes": list(hashes), "medium": "GPU", "group_idx": 0, **secret, **more}


def removed(*hashes: int) -> dict:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU", "group_idx": 0}


CLEARED = {"type": "AllBlocksCleared"}


class Worker:
    """A publisher with a buffer, and what its cache truly holds."""

    def __init__(self, *, buffer: int = 10_000) -> None:
        self.buffer = buffer
        self.sent: list[bytes] = []
        self.cache: Counter[int] = Counter()
        self.ts = 1000.0

    def publish(self, *events: dict) -> tuple[int, bytes]:
        self.ts += 1
        for event in events:
            if event["type"] == "BlockStored":
                self.cache.update(event["block_hashes"])
            elif event["type"] == "BlockRemoved":
                self.cache.subtract(event["block_hashes"])
            else:
                self.cache.clear()
        self.sent.append(batch(self.ts, *events))
        return len(self.sent) - 1, self.sent[-1]

    def restart(self) -> None:
        self.sent, self.cache = [], Counter()

    def replay(self, start: int) -> list[tuple[int, bytes]]:
        first = max(start, len(self.sent) - self.buffer, 0)
        return list(enumerate(self.sent))[first:]

    @property
    def resident(self) -> int:
        return sum(1 for count in self.cache.values() if count > 0)


def answer(tracker: CacheTracker, worker: Worker, ask: Ask | None) -> None:
    """Serves replays until the tracker asks for none."""
    for _ in range(10):
        if ask is None:
            return
        ask = tracker.replayed(ask, worker.replay(ask.start), at=worker.ts)
    raise AssertionError("the tracker asks for ever")


def followed(worker: Worker) -> CacheTracker:
    tracker = CacheTracker()
    answer(tracker, worker, tracker.begin())
    return tracker


def test_it_counts_distinct_blocks_not_events():
    worker = Worker()
    tracker = followed(worker)
    for _ in range(3):
        tracker.live(*worker.publish(stored(1, 2)))
    tracker.live(*worker.publish(removed(1)))
    assert tracker.resident_blocks == 2
    tracker.live(*worker.publish(removed(1)))
    tracker.live(*worker.publish(removed(1)))
    assert tracker.resident_blocks == 1 == worker.resident
    counts = tracker.take_counts()
    assert (counts.stored, counts.removed) == (6, 3)


def test_an_idle_worker_that_published_nothing_has_an_empty_cache():
    tracker = followed(Worker())
    assert (tracker.resident_blocks, tracker.state, tracker.epoch_at) == (0, "live", 1000.0)


def test_it_rebuilds_the_past_from_the_replay_without_counting_it_as_churn():
    worker = Worker()
    worker.publish(stored(1, 2, 3))
    worker.publish(removed(3))
    tracker = followed(worker)
    assert tracker.resident_blocks == 2
    assert tracker.epoch_at == 1001.0
    assert (tracker.take_counts().stored, tracker.take_counts().removed) == (0, 0)


def test_a_buffer_that_begins_later_leaves_the_count_unknown_until_a_clear():
    worker = Worker(buffer=1)
    worker.publish(stored(1))
    worker.publish(stored(2))
    tracker = followed(worker)
    assert (tracker.resident_blocks, tracker.state, tracker.epoch_at) == (None, "degraded", None)
    tracker.live(*worker.publish(CLEARED, stored(7)))
    assert (tracker.resident_blocks, tracker.state) == (1, "live")


def test_a_gap_is_closed_by_replay_and_its_churn_counted():
    worker = Worker()
    tracker = followed(worker)
    tracker.live(*worker.publish(stored(1)))
    worker.publish(stored(2))
    ask = tracker.live(*worker.publish(stored(3)))
    assert ask is not None and tracker.state == "rebuilding" and tracker.resident_blocks is None
    answer(tracker, worker, ask)
    assert tracker.resident_blocks == 3
    counts = tracker.take_counts()
    assert (counts.stored, counts.gaps, counts.lost_messages) == (3, 1, 0)


def test_a_gap_without_an_answer_makes_it_degraded_and_a_restart_heals_it():
    worker = Worker()
    tracker = followed(worker)
    tracker.live(*worker.publish(stored(1)))
    worker.publish(stored(2))
    ask = tracker.live(*worker.publish(stored(3)))
    tracker.unanswered(ask)
    assert (tracker.resident_blocks, tracker.state) == (None, "degraded")
    assert tracker.take_counts().lost_messages == 1
    worker.restart()
    assert tracker.live(*worker.publish(stored(9))) is None
    assert (tracker.resident_blocks, tracker.state) == (1, "live")


def test_a_hole_behind_a_clear_makes_the_count_unknown_again():
    worker = Worker()
    tracker = followed(worker)
    tracker.live(*worker.publish(stored(1)))
    worker.publish(stored(2))
    ask = tracker.live(*worker.publish(CLEARED))
    worker.publish(CLEARED)
    tracker.live(*worker.publish(stored(3)))
    tracker.unanswered(ask)
    assert (tracker.resident_blocks, tracker.state) == (None, "degraded")
    assert tracker.take_counts().lost_messages == 2


def test_a_number_going_backwards_wipes_the_worker():
    worker = Worker()
    tracker = followed(worker)
    for block in range(5):
        tracker.live(*worker.publish(stored(block)))
    worker.restart()
    worker.publish(stored(100))
    answer(tracker, worker, tracker.live(*worker.publish(stored(101))))
    assert tracker.resident_blocks == 2 == worker.resident
    assert tracker.take_counts().cleared == 1


def test_a_batch_that_comes_twice_counts_once():
    worker = Worker()
    tracker = followed(worker)
    message = worker.publish(stored(1))
    tracker.live(*message)
    tracker.live(*worker.publish(stored(2)))
    assert tracker.live(*message) is None
    assert (tracker.resident_blocks, tracker.take_counts().stored) == (2, 2)


def test_a_restart_hidden_behind_a_lost_connection_is_seen_although_numbers_fit():
    worker = Worker()
    tracker = followed(worker)
    for block in range(3):
        tracker.live(*worker.publish(stored(block)))
    worker.restart()
    for block in range(100, 106):
        worker.publish(stored(block))
    answer(tracker, worker, tracker.reconnected())
    assert tracker.resident_blocks == 6 == worker.resident


def test_a_short_loss_of_connection_keeps_the_count():
    worker = Worker(buffer=3)
    tracker = followed(worker)
    for block in range(10):
        tracker.live(*worker.publish(stored(block)))
    worker.publish(stored(10))
    answer(tracker, worker, tracker.reconnected())
    assert tracker.resident_blocks == 11


def test_a_block_that_returns_within_the_window_counts_as_restored():
    worker = Worker()
    tracker = followed(worker)
    tracker.live(*worker.publish(stored(1, 2)))
    tracker.live(*worker.publish(removed(1, 2)))
    tracker.live(*worker.publish(stored(1)))
    worker.ts += 301
    tracker.live(*worker.publish(stored(2)))
    assert tracker.take_counts().restored == 1


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x93" * 50_000,
        encode([1.0, [{"type": "BlockStored", "block_hashes": list(range(1_000_000))}], 0]),
        encode([1.0, [{"type": "BlockStored", "block_hashes": [b"short"]}], 0]),
        encode([1.0, [{"type": "BlockStored", "block_hashes": ["text"]}], 0]),
        encode({"not": "a batch"}),
    ],
)  # fmt: skip
def test_a_payload_that_is_no_batch_makes_the_count_unknown_and_stops_nothing(payload):
    worker = Worker()
    tracker = followed(worker)
    tracker.live(*worker.publish(stored(1)))
    tracker.live(1, payload)
    assert tracker.state == "degraded"
    assert tracker.resident_blocks is None
    assert tracker.take_counts().refused_messages == 1
    tracker.live(2, batch(5.0, CLEARED, stored(4)))
    assert tracker.resident_blocks == 1


def test_an_unknown_kind_of_event_is_counted_and_ignored():
    worker = Worker()
    tracker = followed(worker)
    tracker.live(
        *worker.publish(
            stored(1),
        )
    )
    tracker.live(1, batch(2.0, {"type": "BlockMoved", "block_hashes": [1]}))
    assert (tracker.resident_blocks, tracker.take_counts().unknown_events) == (1, 1)


def test_tokens_are_not_decoded_and_salts_only_when_they_are_asked_for():
    decoded = decode_batch(batch(1.0, stored(1)))
    assert "token_ids" not in decoded.events[0].__struct_fields__
    assert "the-salt" not in repr(decoded)
    assert first_salt(decoded.events[0]) == "the-salt"


def test_a_refusal_quotes_nothing():
    with pytest.raises(EventRefused) as caught:
        decode_batch(encode([1.0, [{"type": "BlockStored", "block_hashes": ["secret-hash"]}], 0]))
    assert "secret-hash" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_memory_of_removed_blocks_is_bounded(monkeypatch):
    monkeypatch.setattr(tracking, "REMOVED_MAX", 10)
    worker = Worker()
    tracker = followed(worker)
    for block in range(100):
        tracker.live(*worker.publish(stored(block)))
        tracker.live(*worker.publish(removed(block)))
    assert len(tracker._removed_at) == 10


def test_a_cache_beyond_the_bound_becomes_unknown(monkeypatch):
    monkeypatch.setattr(tracking, "RESIDENT_MAX", 10)
    worker = Worker()
    tracker = followed(worker)
    tracker.live(*worker.publish(stored(*range(11))))
    assert tracker.resident_blocks is None


@settings(max_examples=400, deadline=None)
@given(seed=st.integers(0, 2**32), buffer=st.sampled_from([2, 5, 10_000]))
def test_whatever_happens_an_exact_count_is_the_truth(seed: int, buffer: int):
    """Losses, restarts, duplicates, reconnections and late replays: `resident_blocks` is right or None."""
    rng = random.Random(seed)
    worker = Worker(buffer=buffer)
    tracker = CacheTracker()
    ask: Ask | None = tracker.begin()
    history: list[tuple[int, bytes]] = []
    for _ in range(80):
        roll = rng.random()
        if roll < 0.6:
            message = worker.publish(_random_event(rng, worker))
            history.append(message)
            if rng.random() < 0.85:
                ask = tracker.live(*message) or ask
        elif roll < 0.65:
            worker.restart()
            ask = tracker.reconnected()
        elif roll < 0.7:
            ask = tracker.reconnected()
        elif roll < 0.75 and worker.sent:
            ask = tracker.live(len(worker.sent) - 1, worker.sent[-1]) or ask
        elif ask is not None:
            if rng.random() < 0.1:
                tracker.unanswered(ask)
                ask = None
            else:
                ask = tracker.replayed(ask, worker.replay(ask.start), at=worker.ts)
    # A reconnection makes the tracker look at everything; afterwards an exact count must be the truth.
    answer(tracker, worker, tracker.reconnected())
    assert tracker.resident_blocks in (None, worker.resident)
    if buffer == 10_000:
        assert tracker.state in ("live", "degraded")


def _random_event(rng: random.Random, worker: Worker) -> dict:
    held = [block for block, count in worker.cache.items() if count > 0]
    if held and rng.random() < 0.4:
        return removed(rng.choice(held))
    return CLEARED if rng.random() < 0.03 else stored(*[rng.randrange(30) for _ in range(rng.randrange(1, 4))])


def test_recorded_events_of_a_real_worker_balance():
    """Three lives of a vLLM 0.32 worker: 7,874 blocks stored, 4,686 removed; the last life holds 78 events' blocks."""
    tracker = CacheTracker()
    tracker.begin()
    tracker.unanswered(Ask(1, 0))
    model: Counter[int] = Counter()
    total = Counter()
    previous = -1
    with gzip.open(RECORDED, "rt") as lines:
        for line in lines:
            message = msgspec.json.decode(line)
            if message["seq"] <= previous:
                model.clear()
            previous = message["seq"]
            ask = tracker.live(message["seq"], encode(message["batch"]))
            assert ask is None
            for event in message["batch"][1]:
                {"BlockStored": model.update, "BlockRemoved": model.subtract}.get(
                    event["type"], lambda _: model.clear()
                )(event.get("block_hashes"))
            assert tracker.resident_blocks == sum(1 for count in model.values() if count > 0)
            counts = tracker.take_counts()
            total.update(stored=counts.stored, removed=counts.removed, gaps=counts.gaps, cleared=counts.cleared)
    assert total == {"stored": 7874, "removed": 4686, "gaps": 0, "cleared": 9}

"""Whose a cached block is, how long it lived, and who evicted whom: inferred from events, with no salt kept."""

from __future__ import annotations

import pytest

from controlplane.fleet.kv_events.owners import IDLE_S, NAMED_MAX, Owners
from controlplane.fleet.kv_events.reporter import Reporter
from controlplane.fleet.kv_events.tracker import CacheTracker
from router.contract.histogram import quantile
from tests.fleet.test_kv_tracker import CLEARED, batch, encode, removed, stored

NAMES = {"salt-a": "acme/support", "salt-b": "globex/agents"}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Followed:
    """A tracker that is told batches at given times, from an empty cache on."""

    def __init__(self) -> None:
        owners = Owners(clock=Clock())
        owners.names = NAMES
        self.tracker = CacheTracker(owners.owner_of)
        self.seq = 0

    def hears(self, ts: float, *events: dict[str, object]) -> None:
        assert self.tracker.live(self.seq, batch(ts, *events)) is None
        self.seq += 1


def of(salt: str | None, *hashes: int, parent: int | None = None) -> dict[str, object]:
    keys = [None if salt is None else [salt], *[None] * (len(hashes) - 1)]
    return stored(*hashes, extra_keys=keys, parent_block_hash=parent)


def test_whoever_stores_next_in_the_batch_evicted_what_was_removed_before() -> None:
    cache = Followed()
    cache.hears(1.0, of("salt-a", 1, 2, 3))
    cache.hears(2.0, removed(3), removed(2), of("salt-b", 10, 11), removed(1), of("salt-a", 20))
    counts = cache.tracker.take_counts()
    assert counts.evicted == {("globex/agents", "acme/support"): 2, ("acme/support", "acme/support"): 1}


def test_later_blocks_of_a_chain_are_its_first_ones_owners() -> None:
    cache = Followed()
    cache.hears(1.0, of("salt-a", 1, 2))
    cache.hears(2.0, of(None, 3, parent=2))
    cache.hears(3.0, removed(3), of("salt-b", 9))
    assert cache.tracker.take_counts().evicted == {("globex/agents", "acme/support"): 1}


def test_what_is_not_known_belongs_to_nobody() -> None:
    cache = Followed()
    cache.hears(1.0, of("salt-of-nobody", 1), of(None, 2), of("salt-a", 3))
    cache.hears(2.0, removed(1), removed(2), of(None, 7, parent=12345))
    cache.hears(3.0, removed(3))
    assert cache.tracker.take_counts().evicted == {("", ""): 2, ("", "acme/support"): 1}


def test_a_cleared_cache_is_no_eviction() -> None:
    cache = Followed()
    cache.hears(1.0, of("salt-a", 1, 2))
    cache.hears(2.0, CLEARED)
    cache.hears(3.0, of("salt-b", 3))
    counts = cache.tracker.take_counts()
    assert (counts.evicted, counts.lifetime) == ({}, {})


def test_lifetimes_and_gaps_are_counted_once_a_block_is_gone_for_good() -> None:
    cache = Followed()
    cache.hears(10.0, of("salt-a", 1, 2), of("salt-a", 2))
    cache.hears(40.0, removed(1), removed(2))
    cache.hears(70.0, removed(2))
    cache.hears(100.0, of("salt-a", 1))
    cache.hears(900.0, of("salt-a", 2))
    cache.hears(901.0, removed(1))
    cache.hears(9000.0, of("salt-a", 1))
    counts = cache.tracker.take_counts()
    lives, gaps = counts.lifetime, counts.restore_gap
    assert sum(lives.values()) == 3
    assert quantile(lives, 0.0) == pytest.approx(30_000, rel=0.03)
    assert quantile(lives, 1.0) == pytest.approx(801_000, rel=0.03)
    assert sum(gaps.values()) == 2, "what returns after more than an hour is new"
    assert quantile(gaps, 0.0) == pytest.approx(60_000, rel=0.03)
    assert quantile(gaps, 1.0) == pytest.approx(830_000, rel=0.03)
    assert (counts.restored, counts.restored_of) == (1, {"acme/support": 1})


def test_a_lost_past_leaves_lives_unknown_and_counts_the_rest() -> None:
    cache = Followed()
    cache.hears(1.0, of("salt-a", 1))
    ask = cache.tracker.live(9, batch(2.0, removed(1), of("salt-b", 5)))
    assert ask is not None
    cache.tracker.unanswered(ask)
    counts = cache.tracker.take_counts()
    assert (counts.evicted, counts.lifetime) == ({("globex/agents", ""): 1}, {})


def test_a_second_is_reported_by_names_and_tells_no_salt() -> None:
    cache = Followed()
    cache.hears(1.0, of("salt-a", 1, 2))
    cache.hears(2.0, removed(1), of("salt-b", 5))
    cache.hears(3.0, of("salt-a", 1))
    reporter = Reporter("llama/w1")
    reporter.heard(at=3.0)
    row, live = reporter.report(cache.tracker, at=3.0, connected=True)
    assert row.evicted == {"globex/agents>acme/support": 1}
    assert row.restored_of == {"acme/support": 1}
    assert sum(row.lifetime.values()) == sum(row.restore_gap.values()) == 1
    assert "salt" not in repr(row) + repr(live) + repr(encode(row))
    again, _ = reporter.report(cache.tracker, at=4.0, connected=True)
    assert (again.evicted, again.lifetime) == ({}, {})


def test_so_many_names_are_told_apart_and_idle_ones_make_room() -> None:
    clock = Clock()
    owners = Owners(clock=clock)
    owners.names = {f"s{number}": f"t/{number}" for number in range(NAMED_MAX + 2)}
    assert [owners.owner_of(f"s{number}") for number in range(NAMED_MAX)] == [f"t/{n}" for n in range(NAMED_MAX)]
    assert owners.owner_of(f"s{NAMED_MAX}") == "*"
    clock.now = IDLE_S
    assert owners.owner_of("s1") == "t/1"
    assert owners.owner_of(f"s{NAMED_MAX}") == f"t/{NAMED_MAX}", "the longest idle one made room"
    assert owners.owner_of(f"s{NAMED_MAX + 1}") == f"t/{NAMED_MAX + 1}"
    assert owners.owner_of("s1") == "t/1"
    assert owners.owner_of("nobody's") == ""


def test_owners_show_no_salt() -> None:
    owners = Owners(clock=Clock())
    owners.names = NAMES
    assert "salt" not in repr(owners)

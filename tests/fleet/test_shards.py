"""Shards: every worker in one, silent ones apart, and the longest unpolled first."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from controlplane.fleet.tasks import SHARD_WORKERS_MAX, _shards

NOON = datetime(2026, 5, 17, 12, tzinfo=UTC)


def test_every_worker_is_in_one_shard():
    count = 3 * SHARD_WORKERS_MAX + 7
    shards = _shards([(pk, NOON, pk % 9 == 0) for pk in range(count)])
    assert sorted(pk for shard in shards for pk in shard) == list(range(count))
    assert max(map(len, shards)) <= SHARD_WORKERS_MAX


def test_silent_workers_are_polled_apart():
    shards = _shards([(pk, NOON, pk in (2, 5)) for pk in range(8)])
    assert sorted(shards) == [[0, 1, 3, 4, 6, 7], [2, 5]]


def test_the_shard_that_waited_longest_comes_first_and_a_worker_never_polled_before_all():
    size = SHARD_WORKERS_MAX
    polled = [NOON, NOON - timedelta(seconds=9), None, NOON - timedelta(seconds=1)]
    shards = _shards([(pk, polled[pk // size], False) for pk in range(4 * size)])
    assert [shard[0] // size for shard in shards] == [2, 1, 3, 0]


def test_where_time_is_for_some_shards_only_each_gets_its_turn():
    polled: dict[int, datetime | None] = dict.fromkeys(range(6 * SHARD_WORKERS_MAX))
    turns = dict.fromkeys(polled, 0)
    for tick in range(30):
        shards = _shards([(pk, at, False) for pk, at in polled.items()])
        for pk in [pk for shard in shards[:2] for pk in shard]:
            polled[pk] = NOON + timedelta(seconds=2 * tick)
            turns[pk] += 1
    assert set(turns.values()) == {10}

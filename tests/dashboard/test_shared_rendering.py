"""One rendering a second for all who look at the same."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dashboard.cache import SingleFlight


def test_it_computes_once_for_many_simultaneous_readers() -> None:
    calls = []
    gate = threading.Event()
    cache: SingleFlight[int] = SingleFlight()

    def compute() -> int:
        calls.append(1)
        gate.wait(5)
        return 7

    with ThreadPoolExecutor(16) as pool:
        readers = [pool.submit(cache.get, "fleet", compute) for _ in range(16)]
        gate.set()
        assert [reader.result(5) for reader in readers] == [7] * 16
    assert len(calls) == 1


def test_it_computes_again_after_its_time() -> None:
    clock = [0.0]
    cache: SingleFlight[int] = SingleFlight(ttl_s=1.0, clock=lambda: clock[0])
    values = iter(range(10))
    assert cache.get("a", lambda: next(values)) == 0
    clock[0] = 0.9
    assert cache.get("a", lambda: next(values)) == 0
    clock[0] = 1.1
    assert cache.get("a", lambda: next(values)) == 1


def test_what_was_begun_before_a_change_is_computed_again_once() -> None:
    now = [0.0]
    flight: SingleFlight[int] = SingleFlight(clock=lambda: now[0])
    values = iter(range(9))
    compute = lambda: next(values)  # noqa: E731
    assert flight.get("k", compute) == 0
    now[0] = 0.2
    assert flight.peek("k", since=0.1) is None
    assert [flight.get("k", compute, since=0.1) for _ in range(3)] == [1, 1, 1]
    assert flight.peek("k", since=0.2) == 1


def test_one_under_way_since_before_a_change_is_not_waited_for() -> None:
    now, begun, go_on = [0.0], threading.Event(), threading.Event()
    flight: SingleFlight[str] = SingleFlight(clock=lambda: now[0])

    def slow() -> str:
        begun.set()
        assert go_on.wait(10)
        return "old"

    with ThreadPoolExecutor() as pool:
        old = pool.submit(flight.get, "k", slow)
        assert begun.wait(10)
        now[0] = 0.5
        assert flight.get("k", lambda: "new", since=0.3) == "new"
        go_on.set()
        assert old.result() == "old"
    assert flight.peek("k") == "new"


def test_it_does_not_keep_a_failure() -> None:
    cache: SingleFlight[int] = SingleFlight()
    with pytest.raises(ZeroDivisionError):
        cache.get("a", lambda: 1 // 0)
    assert cache.get("a", lambda: 3) == 3


def test_it_forgets_the_oldest_beyond_its_bound() -> None:
    cache: SingleFlight[int] = SingleFlight(entries_max=2, ttl_s=100)
    for key in "abc":
        cache.get(key, lambda: 1)
    assert cache.get("a", lambda: 2) == 2
    assert cache.get("c", lambda: 2) == 1

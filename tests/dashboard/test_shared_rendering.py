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

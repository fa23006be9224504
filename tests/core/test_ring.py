"""Consistent hashing: S0.3, C43, C63."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.contract.ids import WorkerId
from router.core.ring import Ring

_RNG = random.Random(5)
KEYS = [_RNG.getrandbits(128) for _ in range(2000)]


def workers(count: int, pool: str = "p") -> list[WorkerId]:
    return [WorkerId(f"{pool}/w{number}") for number in range(count)]


def homes(ring: Ring) -> list[WorkerId | None]:
    return [ring.home(key) for key in KEYS]


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 20), st.integers(0, 1000))
def test_removing_a_worker_moves_its_keys_only(count: int, salt: int) -> None:
    names = [WorkerId(f"p{salt}/w{number}") for number in range(count)]
    gone = names[salt % count]
    before = homes(Ring(names, virtual_nodes=100))
    after = homes(Ring([name for name in names if name != gone], virtual_nodes=100))
    moved = sum(1 for old, new in zip(before, after, strict=True) if old != new)
    assert all(old == gone for old, new in zip(before, after, strict=True) if old != new)
    assert moved == before.count(gone)


@pytest.mark.parametrize("count", [2, 5, 12, 20])
def test_each_of_n_workers_has_about_one_key_in_n(count: int) -> None:
    """So that is what its removal moves. Fixed names: 100 points leave a tenth of spread, which some names exceed."""
    held = Counter(homes(Ring(workers(count), virtual_nodes=100)))
    assert len(held) == count
    assert all(0.6 < keys / len(KEYS) * count < 1.5 for keys in held.values())


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 20))
def test_adding_a_worker_moves_keys_only_to_it(count: int) -> None:
    before = homes(Ring(workers(count), virtual_nodes=100))
    after = homes(Ring(workers(count + 1), virtual_nodes=100))
    assert {new for old, new in zip(before, after, strict=True) if old != new} <= {WorkerId(f"p/w{count}")}


def test_c43_virtual_nodes_spread_keys_evenly() -> None:
    spread = Counter(homes(Ring(workers(8), virtual_nodes=100)))
    assert max(spread.values()) < 1.4 * len(KEYS) / 8
    assert min(spread.values()) > 0.6 * len(KEYS) / 8


def test_a_worker_without_weight_passes_its_keys_on_and_gets_them_back() -> None:
    ring = Ring(workers(5), virtual_nodes=100)
    full = WorkerId("p/w2")
    for key, home in zip(KEYS, homes(ring), strict=True):
        overflow = ring.home(key, lambda worker: worker != full)
        assert overflow != full
        assert home == full or overflow == home


def test_it_does_not_depend_on_the_order_of_workers() -> None:
    names = workers(6)
    assert homes(Ring(names, virtual_nodes=64)) == homes(Ring(names[::-1], virtual_nodes=64))


def test_c63_equal_slugs_in_two_pools_have_their_own_points() -> None:
    assert Ring(workers(3, "a"), virtual_nodes=10)._positions != Ring(workers(3, "b"), virtual_nodes=10)._positions


def test_an_empty_ring_and_a_ring_that_nobody_takes_have_no_home() -> None:
    assert Ring([], virtual_nodes=100).home(1) is None
    assert Ring(workers(3), virtual_nodes=100).home(1, lambda _: False) is None


def test_it_refuses_a_ring_without_virtual_nodes() -> None:
    with pytest.raises(ValueError, match="virtual node"):
        Ring(workers(1), virtual_nodes=0)

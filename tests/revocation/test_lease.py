"""The lease runs by the machine's own monotonic clock, whatever the wall clocks of the fleet say."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.contract.snapshot import sign_snapshot
from router.core.lease import Lease
from router.core.limits import CoreLimits
from router.core.model import NamespaceStale
from router.core.table import RoutingTable
from tests.router.conftest import ALICE_KEY, FLEET, MODEL, snapshot_for

HARD_STOP_S = 60.0


def _table(*, created_at: float, wall: float, mono: float) -> RoutingTable:
    table = RoutingTable(fleet_key=FLEET, booted_at=wall, rng=random.Random(1))
    snapshot = snapshot_for(["http://127.0.0.1:9"], on_stale="deny")
    document = sign_snapshot(snapshot, version=1, epoch=1, created_at=created_at, fleet_key=FLEET)
    table.apply_snapshot(document, snapshot, now=wall, lease_now=mono)
    return table


def _is_served(table: RoutingTable, *, wall: float, mono: float) -> bool:
    try:
        table.resolve(api_key=ALICE_KEY, model=MODEL, now=wall, lease_now=mono)
    except NamespaceStale:
        return False
    return True


@given(
    skew_s=st.floats(-1e6, 1e6),
    step_s=st.floats(-1e6, 1e6),
    silence_s=st.floats(0, 300),
)
def test_a_deny_namespace_ends_within_the_hard_stop_whatever_the_wall_clock_does(
    skew_s: float, step_s: float, silence_s: float
) -> None:
    table = _table(created_at=1e9 + skew_s, wall=1e9, mono=50.0)
    table.confirm_snapshot(lease_now=100.0)
    served = _is_served(table, wall=1e9 + step_s, mono=100.0 + silence_s)
    assert served == (silence_s <= CoreLimits().stale_deny_after_s)
    assert not (served and silence_s > HARD_STOP_S)


def test_a_control_planes_fast_clock_keeps_nothing_open() -> None:
    table = _table(created_at=1e9 + 3600, wall=1e9, mono=0.0)
    assert _is_served(table, wall=1e9, mono=1.0)
    assert not _is_served(table, wall=1e9, mono=61.0)


def test_a_start_from_an_old_copy_counts_the_time_before_it() -> None:
    table = _table(created_at=1e9 - 3600, wall=1e9, mono=5.0)
    assert not _is_served(table, wall=1e9, mono=5.0)
    table.confirm_snapshot(lease_now=6.0)
    assert _is_served(table, wall=1e9, mono=6.0)


def test_a_document_that_is_applied_again_is_no_younger_for_that() -> None:
    table = _table(created_at=1e9, wall=1e9, mono=0.0)
    snapshot = snapshot_for(["http://127.0.0.1:9"], on_stale="deny")
    document = sign_snapshot(snapshot, version=1, epoch=1, created_at=1e9, fleet_key=FLEET)
    table.apply_snapshot(document, snapshot, now=1e9 - 3600, lease_now=61.0)
    assert not _is_served(table, wall=1e9 - 3600, mono=61.0)


def test_an_answer_counts_from_its_question() -> None:
    lease = Lease()
    assert lease.age_s(1.0) == float("inf")
    lease.begin(age_s=10.0, now=100.0)
    lease.renew(now=95.0)
    lease.renew(now=92.0)
    assert lease.age_s(100.0) == pytest.approx(5.0)

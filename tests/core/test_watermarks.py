"""KV-use hysteresis: S0.4, C41, C51."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.contract.live import KvLive, WorkerLive
from router.contract.snapshot import PoolPolicy, Watermark
from router.core.watermarks import Watermarks, churn_pressure, thrash_pressure, watermark_use
from tests.core.scene import MODEL, POOL, Scene, prompt, snapshot, worker_id

MARK = Watermark(low=0.65, high=0.85)


def full_after(*samples: float | None, mark: Watermark = MARK, step_s: float = 1.0) -> bool:
    marks = Watermarks()
    marks.full(mark)
    for number, use in enumerate(samples):
        marks.observe(use, now=number * step_s)
    return marks.full(mark)


@pytest.mark.parametrize(
    ("samples", "full"),
    [
        ((0.84,), False),
        ((0.85,), True),
        ((0.9, 0.7), True),
        ((0.9, 0.66, 0.8, 0.66), True),
        ((0.9, 0.65), False),
        ((0.9, 0.1, 0.84), False),
        ((0.9, None, None), True),
        ((0.9, None, 0.3), False),
        ((None,), False),
    ],
)
def test_it_changes_only_at_the_marks(samples: tuple[float | None, ...], full: bool) -> None:
    assert full_after(*samples) is full


@given(st.lists(st.floats(0.6501, 0.8499), max_size=50), st.booleans())
def test_it_never_flaps_between_the_marks(between: list[float], full: bool) -> None:
    assert full_after(1.0 if full else 0.0, *between) is full


@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), min_size=1, max_size=60), st.floats(0, 20))
def test_two_changes_are_never_closer_than_the_dwell(samples: list[float | None], dwell_s: float) -> None:
    mark, marks = Watermark(low=0.65, high=0.85, dwell_s=dwell_s), Watermarks()
    was, changes = marks.full(mark), []
    for number, use in enumerate(samples):
        marks.observe(use, now=float(number))
        if marks.full(mark) != was:
            was = not was
            changes.append(number)
    assert all(later - earlier >= dwell_s for earlier, later in pairwise(changes))


@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=30))
def test_c41_one_healthy_sample_clears_the_mark(samples: list[float | None]) -> None:
    assert full_after(*samples, 0.2) is False


def test_a_namespaces_own_watermark_is_judged_by_itself() -> None:
    marks, strict = Watermarks(), Watermark(low=0.2, high=0.4)
    marks.observe(0.5, now=1)
    assert marks.full(strict) is True
    assert marks.full(MARK) is False


def _kv(*, resident: int, evicted: float, restored: float | None) -> KvLive:
    return KvLive(
        at=10, resident_blocks=resident, capacity_blocks=1000, evictions_per_s=evicted, restores_per_s=restored
    )


def test_a_full_cache_counts_only_while_what_it_evicts_comes_back() -> None:
    idle, at_work = _kv(resident=1000, evicted=0, restored=0), _kv(resident=1000, evicted=100, restored=1)
    thrashing = _kv(resident=950, evicted=100, restored=100)
    assert [thrash_pressure(kv, now=10) for kv in (idle, at_work, thrashing)] == pytest.approx([0.0, 0.06, 0.95])
    live = WorkerLive(at=10, kv_use=0.3)
    assert [watermark_use(live, kv, now=10) for kv in (idle, at_work, thrashing)] == pytest.approx([0.3, 0.3, 0.95])
    assert watermark_use(live, _kv(resident=1000, evicted=100, restored=None), now=10) == pytest.approx(0.3)


def test_churn_counts_every_eviction() -> None:
    assert churn_pressure(_kv(resident=1000, evicted=1, restored=0), now=10) == pytest.approx(0.06)
    assert churn_pressure(_kv(resident=950, evicted=100, restored=0), now=10) == pytest.approx(0.95)


@pytest.mark.parametrize(
    ("live", "kv"),
    [
        (None, None),
        (WorkerLive(at=1, kv_use=0.9), None),
        (WorkerLive(at=10, kv_use=None), KvLive(at=10, resident_blocks=5)),
        (WorkerLive(at=10, kv_use=float("nan")), None),
        (None, KvLive(at=1, resident_blocks=10, capacity_blocks=10, restores_per_s=100)),
    ],
)
def test_stale_missing_and_odd_figures_are_unknown(live: WorkerLive | None, kv: KvLive | None) -> None:
    assert watermark_use(live, kv, now=10) is None


def test_a_full_worker_takes_no_new_prefix_but_serves_what_it_holds() -> None:
    scene, held = Scene(), prompt(1, 20_000)
    home = scene.serve(held)
    number = int(home[-1])
    scene.live({number: 0.95})
    assert scene.table.state(now=scene.now).worker_states[home] == "full"
    assert scene.choose(held + prompt(2, 600)).worker == home
    fresh = [scene.serve(prompt(100 + seed, 4000)) for seed in range(40)]
    assert home not in fresh
    scene.live({number: 0.7})
    assert home not in [scene.serve(prompt(200 + seed, 4000)) for seed in range(40)]
    scene.live({number: 0.6})
    assert home in [scene.serve(prompt(300 + seed, 4000)) for seed in range(40)]


def test_a_new_prefix_overflows_to_the_next_worker_on_the_ring_and_says_why() -> None:
    scene = Scene(snapshot(pool=PoolPolicy(models=(MODEL,), routing="ring")))
    text = prompt(7, 6000)
    home = scene.choose(text).worker
    scene.live({int(home[-1]): 0.9})
    decision = scene.choose(text)
    assert decision.worker != home
    assert (decision.reason, decision.spill, decision.preferred) == ("spill_watermark", "watermark", home)


def test_c51_full_everywhere_halts_nothing() -> None:
    scene = Scene()
    scene.live(dict.fromkeys(range(4), 0.99))
    scene.now += 3600
    assert scene.choose(prompt(1, 5000)).worker in scene.policy.workers
    assert set(scene.table.state(now=scene.now).worker_states.values()) == {"full"}


def test_a_namespaces_watermark_beats_its_pools() -> None:
    scene = Scene(snapshot(namespace={"watermark": Watermark(low=0.1, high=0.3)}, workers=2))
    scene.live({0: 0.5, 1: 0.0})
    assert {scene.serve(prompt(seed, 3000)) for seed in range(20)} == {worker_id(1)}
    assert scene.table.state(now=scene.now).worker_states[worker_id(0)] == "ready"
    assert scene.grant().pool == POOL

"""What a worker takes along, reckoned by hand; and which worker of a pool is safest to remove."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from controlplane.fleet.models import Worker, WorkerPool, WorkerStatus
from controlplane.fleet.selectors import workers_table
from controlplane.telemetry.calibration import learnt_rates
from controlplane.telemetry.ingest import apply_entries
from controlplane.telemetry.leaving import leaving, values_of_workers
from controlplane.telemetry.models import SourceProgress
from controlplane.telemetry.removal import ranking, rate_without
from router.contract.telemetry import Calibration, ExactState, PrefixHeat
from tests.telemetry.shipments import STATE, row, shipment

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 30, 12, 0, 7, tzinfo=UTC)
RATE = 1000.0


def _tell(*, at: datetime = NOW - timedelta(seconds=60), **parts: object) -> None:
    seq = SourceProgress.objects.filter(source="r1").values_list("last_seq", flat=True).first() or 0
    applied = apply_entries([shipment(seq + 1, at.timestamp(), **parts)], now=NOW)
    assert not applied.refused, applied.refused


def _heat(prefix: str, namespace: str, tokens: int, **by_worker: int) -> PrefixHeat:
    return PrefixHeat(
        prefix=prefix, namespace=namespace, pool="p", tokens=tokens,
        by_worker={f"p/{worker}": count for worker, count in by_worker.items()},
    )  # fmt: skip


@pytest.fixture
def traffic(db: None) -> None:
    chat = {"requests": 10, "hit_known": 10, "hit_tokens": 20_000, "saved_prefill_ms": 2_000.0}
    _tell(
        requests=[
            row(**chat),
            row(worker="p/w2", requests=30, hit_known=30, hit_tokens=3_000, saved_prefill_ms=300.0),
            row(tenant="globex", namespace="globex/bot", requests=4, hit_known=0, hit_tokens=0, saved_prefill_ms=0.0),
            row(worker="q/w1", pool="q", requests=99),
        ],
        heat=[
            _heat("a" * 16, "acme/chat", 500, w1=9),
            _heat("b" * 16, "acme/chat", 6_000, w1=9, w2=1),
            _heat("c" * 16, "acme/chat", 700, w1=3, w2=2),
            _heat("d" * 16, "acme/chat", 800, w2=20),
        ],
    )


def test_prefixes_are_at_home_where_most_of_their_requests_go(traffic: None) -> None:
    found = leaving("p/w1", rate=RATE, now=NOW)
    assert {each.prefix[0]: each.only_here for each in found.homed} == {"a": True, "b": True, "c": False}
    assert {each.prefix[0]: each.here_share for each in found.homed} == {"a": 1.0, "b": 0.9, "c": 0.6}


def test_shared_prefill_is_what_requests_share_at_least_the_prefixs_own_tokens(traffic: None) -> None:
    found = leaving("p/w1", rate=RATE, now=NOW)
    assert {each.prefix[0]: each.shared_tokens for each in found.homed} == {"a": 2_000, "b": 6_000, "c": 2_000}
    assert (found.recompute_tokens, found.recompute_s) == (8_000, 8.0)


def test_tenants_wait_longer_by_their_mean_hit_tokens_until_each_prefix_was_asked_for_again(traffic: None) -> None:
    acme, globex = leaving("p/w1", rate=RATE, now=NOW).tenants
    assert (acme.tenant, acme.requests_share, acme.slower_ms) == ("acme", 0.25, 2_000.0)
    assert acme.lasts_s == pytest.approx(900 / 9 + 8.0)
    assert (globex.tenant, globex.slower_ms, globex.lasts_s) == ("globex", None, None)
    assert globex.requests_share == 1.0


def test_without_a_rate_times_are_unknown(traffic: None) -> None:
    found = leaving("p/w1", rate=None, now=NOW)
    assert found.recompute_s is None and found.recompute_tokens == 8_000
    assert all(each.slower_ms is None and each.lasts_s is None for each in found.tenants)


def test_what_is_older_than_the_window_does_not_count(traffic: None) -> None:
    later = NOW + timedelta(minutes=16)
    found = leaving("p/w1", rate=RATE, now=later)
    assert found.homed == [] and found.tenants == [] and found.recompute_s == 0.0


def test_workers_are_worth_what_only_they_hold_and_what_they_spared(traffic: None) -> None:
    values = values_of_workers("p", now=NOW)
    assert set(values) == {"p/w1", "p/w2"}
    one, two = values["p/w1"], values["p/w2"]
    assert (one.homed, one.only_here, one.recompute_tokens, one.saved_ms) == (3, 2, 8_000, 2_000)
    assert (two.homed, two.only_here, two.recompute_tokens, two.saved_ms) == (1, 1, 800, 300)


@pytest.fixture
def fleet(traffic: None) -> None:
    pool = WorkerPool.objects.create(slug="p", prefill_tokens_per_s=500)
    for number in range(1, 5):
        worker = Worker.objects.create(pool=pool, slug=f"w{number}", url=f"http://127.0.0.1:{29500 + number}")
        WorkerStatus.objects.create(worker=worker, polled_at=NOW, ok_at=NOW, reading={"running": number})
    told = {f"p/w{number}": Calibration(RATE * number, 10, 4.0, 0.9) for number in range(1, 5)}
    outstanding = {"p/w1": 3}
    _tell(at=NOW - timedelta(seconds=2), router=_state(told, outstanding))


def _state(told: dict[str, Calibration], outstanding: dict[str, int]) -> object:
    return msgspec.structs.replace(
        STATE, calibration=told, worker_outstanding=outstanding, worker_states={"p/w1": "ejected"},
        exact={"p": ExactState("exact", by_text={"p/w2": "events degraded: lost"})},
    )  # fmt: skip


def _ranked() -> dict[str, str]:
    return {each.row.slug: each.verdict for each in ranking("p", workers_table(now=NOW), now=NOW)}


def test_least_is_lost_first(fleet: None) -> None:
    assert list(_ranked()) == ["w3", "w4", "w2", "w1"], "w3 and w4 lose nothing: fewer running first"
    ranked = {each.row.slug: each for each in ranking("p", workers_table(now=NOW), now=NOW)}
    # Median of the others' rates: 3,000 for w1, 3,000 for w2 (1,000, 3,000, 4,000).
    assert ranked["w1"].value_s == pytest.approx(8_000 / 3_000 + 2.0)
    assert ranked["w2"].value_s == pytest.approx(800 / 3_000 + 0.3)
    assert ranked["w3"].value_s == 0.0


def test_what_takes_nothing_comes_first_and_the_last_that_serves_at_the_end(fleet: None) -> None:
    Worker.objects.filter(slug__in=("w2", "w3")).update(state="drain")
    WorkerStatus.objects.filter(worker__slug="w3").update(reading={"running": 0})
    WorkerStatus.objects.filter(worker__slug="w4").update(consecutive_failures=5)
    assert _ranked() == {"w3": "unused", "w4": "unused", "w2": "costs", "w1": "last"}
    assert list(_ranked())[-1] == "w1"


def test_what_cannot_be_told_is_not_called_safe(fleet: None) -> None:
    WorkerStatus.objects.filter(worker__slug="w3").update(ok_at=NOW - timedelta(minutes=2))
    assert list(_ranked().items())[-1] == ("w3", "unknown")
    SourceProgress.objects.update(last_at=NOW - timedelta(seconds=40))
    assert set(_ranked().values()) == {"unknown"}
    assert all(each.value_s is None for each in ranking("p", workers_table(now=NOW), now=NOW))


def test_learnt_rates_are_told_with_what_they_rest_on(fleet: None) -> None:
    learnt = learnt_rates(now=NOW)
    one = learnt["p/w1"]
    assert (one.tokens_per_s, one.samples, one.credit, one.routers) == (1000.0, 10, 0.9, 1)
    assert one.age_s == pytest.approx(6.0), "as old as it was when it was told, and two seconds more"
    assert (one.outstanding, one.seen_as, one.matched) == (3, "ejected", "exact")
    assert learnt["p/w2"].matched == "text: events degraded: lost"


def test_of_two_routers_the_one_that_has_seen_more_tells_the_rate(fleet: None) -> None:
    told = {"p/w1": Calibration(9000.0, 50, 1.0, 0.4)}
    state = _state(told, {"p/w1": 2})
    applied = apply_entries([shipment(1, (NOW - timedelta(seconds=1)).timestamp(), source="r2", router=state)], now=NOW)
    assert not applied.refused
    one = learnt_rates(now=NOW)["p/w1"]
    assert (one.tokens_per_s, one.samples, one.credit, one.routers, one.outstanding) == (9000.0, 60, 0.4, 2, 5)


def test_the_rate_of_the_others_falls_back_to_the_pools(fleet: None) -> None:
    rows = workers_table(now=NOW)
    learnt = learnt_rates(now=NOW)
    assert rate_without("p/w1", rows, learnt) == 3000.0
    assert rate_without("p/w1", rows, {}) == 500.0
    assert rate_without("p/w1", [replace(each, prefill_tokens_per_s=None) for each in rows], {}) is None
